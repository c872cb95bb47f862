package sqlite

import (
	"github.com/tapestore/tapestore/runstore"
)

// eventNumbers begins an event that a query returns as one value: the driver allocates for each
// value of a row. The numbers are decimal, with a space behind each, the last of them the length
// of the run's id. Then come kind, owner, the run's id and data.
const eventNumbers = `events.pos || ' ' || events.seq || ' ' || events.time || ' ' || events.token || ' ' ||
	length(CAST(events.kind AS BLOB)) || ' ' || length(CAST(events.owner AS BLOB))`

// eventDecoder reads the events of a page. It keeps the strings that events have in common.
type eventDecoder struct {
	kind  string         // of the last event: most have the one of the event before
	owner runstore.Owner // likewise
	runs  map[string]runstore.RunID
}

// decode reads an event. The event keeps the row's bytes.
func (d *eventDecoder) decode(row []byte) (e runstore.FeedEvent, err error) {
	var numbers [7]int64
	at := 0
	for i := range numbers {
		negative := at < len(row) && row[at] == '-'
		if negative {
			at++
		}
		for at < len(row) && row[at] != ' ' {
			numbers[i] = 10*numbers[i] + int64(row[at]-'0')
			at++
		}
		if negative {
			numbers[i] = -numbers[i]
		}
		at++
	}
	kind := at + int(numbers[4])
	owner := kind + int(numbers[5])
	run := owner + int(numbers[6])
	if at > kind || kind > owner || owner > run || run > len(row) {
		return e, damaged("the event at position %d cannot be read", numbers[0])
	}
	if d.kind != string(row[at:kind]) {
		d.kind = string(row[at:kind])
	}
	if string(d.owner) != string(row[kind:owner]) {
		d.owner = runstore.Owner(row[kind:owner])
	}
	if run > owner {
		e.Run = d.run(row[owner:run])
	}
	e.Event = runstore.Event{
		Position: runstore.Position(numbers[0]), Seq: runstore.Seq(numbers[1]), Kind: d.kind, Data: row[run:len(row):len(row)],
		Time: runstore.FromMicros(numbers[2]), Token: runstore.Token(numbers[3]), Owner: d.owner,
	}
	return e, nil
}

func (d *eventDecoder) run(id []byte) runstore.RunID {
	run, known := d.runs[string(id)]
	if !known {
		if d.runs == nil {
			d.runs = map[string]runstore.RunID{}
		}
		run = runstore.RunID(id)
		d.runs[string(run)] = run
	}
	return run
}
