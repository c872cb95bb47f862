package sqlite

import (
	"github.com/tapestore/tapestore/runstore"
)

// eventDecoder decodes the events of a page. It shares the strings that the events have in common.
type eventDecoder struct {
	kind  string         // of the last event: most events have the kind of the previous one
	owner runstore.Owner // likewise
	runs  map[string]runstore.RunID
}

// decode decodes an event in the form of sql/journal_page.sql. The event keeps the row's bytes.
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
