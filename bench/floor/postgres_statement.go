package floor

import (
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// postgresForm holds the properties of a write that determine its statement. Counts are 0, 1 or
// many.
type postgresForm struct {
	events, records int
	id, new         bool
}

// postgresStatements holds the statements of all forms, so that a commit only looks its statement
// up.
var postgresStatements = map[postgresForm]string{}

func init() {
	for events := range 3 {
		for records := range 3 {
			for _, id := range []bool{false, true} {
				for _, isNew := range []bool{false, true} {
					form := postgresForm{events, records, id, isNew}
					postgresStatements[form] = form.statement()
				}
			}
		}
	}
}

// postgresCommit returns the statement for a write.
func postgresCommit(w bench.Write) string {
	form := postgresForm{events: min(w.Events, 2), id: w.BatchID != "", new: w.New}
	if w.Key != "" {
		form.records = min(max(1, w.Records), 2)
	}
	return postgresStatements[form]
}

// statement returns the statement of the form. Its parameters are the run, the token, the grant,
// kind and data of the events, the id, and key and value of the records. It returns a number for
// each row that its last INSERT adds, and no row if the token is stale.
func (f postgresForm) statement() string {
	const table = `tapestore_bench.`
	last := 3
	parameter := func(of string, many bool) string {
		last++
		if many {
			of += "[]"
		}
		return fmt.Sprintf("$%d::%s", last, of)
	}
	var steps []string // the last step is the main statement
	add := func(name, step string) { steps = append(steps, name+" AS ("+step) }

	holds := ` WHERE id = $1 AND token = $2 AND grant_id = $3`
	advance := func(by string) string {
		return `UPDATE ` + table + `runs SET last_seq = last_seq + ` + by + holds +
			` RETURNING no, last_seq AS seq, token, owner, clock_timestamp() AS now`
	}
	events := ""
	const columns = `INSERT INTO ` + table + `events (run, seq, token, time, kind, owner, data) `
	switch f.events {
	case 0:
		add("r", `SELECT no, last_seq AS seq, clock_timestamp() AS now FROM `+table+`runs`+holds+` FOR NO KEY UPDATE`)
	case 1:
		add("r", advance("1"))
		events = columns + `SELECT no, seq, token, now, ` + parameter("text", false) + `, owner, ` + parameter("bytea", false) + ` FROM r`
	default:
		kind, data := parameter("text", false), parameter("bytea", true)
		add("r", advance("cardinality("+data+")"))
		events = columns + `SELECT no, seq - cardinality(` + data + `) + i, token, now, ` + kind + `, owner, data FROM r, unnest(` + data + `) WITH ORDINALITY AS new (data, i)`
	}
	if f.id {
		add("b", `INSERT INTO `+table+`batches (run, seq, time, id) SELECT no, seq, now, `+parameter("text", false)+` FROM r RETURNING seq`)
	}
	if f.records > 0 {
		many := f.records > 1
		key, value := parameter("bytea", many), parameter("bytea", many)
		put := `INSERT INTO ` + table + `records (run, version, seq, time, key, value) SELECT no, 1, seq, now, `
		if many {
			put += `key, value FROM r, unnest(` + key + `, ` + value + `) AS new (key, value)`
		} else {
			put += key + `, ` + value + ` FROM r`
		}
		if !f.new {
			put += ` ON CONFLICT (run, key) DO UPDATE SET version = records.version + 1, seq = excluded.seq, time = excluded.time, value = excluded.value`
		}
		add("p", put+` RETURNING version`)
	}
	if events != "" {
		add("e", events+` RETURNING seq`)
	}
	_, main, _ := strings.Cut(steps[len(steps)-1], " AS (")
	if len(steps) == 1 { // only the check
		return main
	}
	return "WITH " + strings.Join(steps[:len(steps)-1], "),\n\t") + ")\n" + main
}
