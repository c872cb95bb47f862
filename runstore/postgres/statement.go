package postgres

import (
	"regexp"
	"slices"
	"strconv"
	"sync"
)

// A commit that appends events under a fence is one SQL statement. The statement may also store a
// result under an id, check versions, and put records with their index entries. It has three forms:
//
//	alone   one batch
//	merged  several batches of events for one run, under one fence
//	multi   batches for several runs; skips each run whose row is locked
//
// It is not simple because a statement has one snapshot and may then wait for the row of its run.
// What the statement reads of other tables may be out of date by the time it has the lock. Its
// invariants:
//
//  1. The fence, the expiry of a strict lease and the voided nonces are conditions on the row of
//     the run. PostgreSQL evaluates them on the row that it locks:
//     https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
//  2. In the snapshot, the run has no result under the id, and every guarded record has the
//     expected version.
//  3. What is new in the snapshot, an id or a record, is new under the lock too. Otherwise a unique
//     index refuses the statement, and it is sent again with a newer snapshot.
//  4. If a record exists already, last_seq and batches of the locked row equal those of the
//     snapshot. Every write that changes records of a run changes one of the two. So the versions
//     in the snapshot are current.
//  5. If a condition does not hold for a run, the statement changes nothing of the run and returns no row for it.
//     The batches are sent again in calls of tapestore.write; several batches of one run that the form
//     multi has left out are first sent in the form merged. tapestore.write is VOLATILE and so has a
//     newer snapshot. It returns the first result of the id, explains the refusal, or applies a batch
//     that had only lost a race against another writer, whose lease is timed or that evicts results.
//  6. The commit with which the results of its run reach or pass a multiple of 128 evicts the oldest
//     ones. In the form alone tapestore.write performs that commit, the other forms evict.
//
// Outline: a form selects a file and parts of it: sql/append_one.sql for one event or record,
// sql/append.sql for the others. form.statement assembles the text, once per form; commitArgs
// collects the arguments. A statement has only the parts that its batches need, because
// each part costs 10 to 100 µs of the server's time, used or not. For the same reason an append of
// one event, with at most one guard and one record, has a form with scalars where the others have
// arrays; a lock that few leases need is left out of the others' appends (timed.go); and a record
// that is guarded to be new is only inserted.
//
// Rejected: tapestore.write for every commit. PL/pgSQL runs about ten statements for what is one
// here, in twice the server's time, and for one run only (BenchmarkAppend). A call of it in the
// statement, for a batch that is not applied: refusals then take one round trip instead of two, but
// every commit prepares the call, which costs 3 to 5 % of the server's instructions.

// form identifies a variant of the commit statement by the parts that it has.
type form struct {
	multi, alone bool
	oneEvent     bool // alone, with one event, at most one guard, and at most one record, without index entries
	noEvent      bool // oneEvent, but without the event

	ids, guards, puts bool // except with oneEvent, guards and puts are set together, and index entries belong to them
	inserts           bool // one record, which is guarded to be new; then guards and puts are unset

	timed bool // the lease is one of timedLeases
}

// commitStatement is the text of a statement and the indexes of its arguments among the 31.
type commitStatement struct {
	sql  string
	args []int
}

// commitStatements has every form. A text is built on first use.
var commitStatements = map[form]func() commitStatement{}

func init() {
	both := []bool{false, true}
	for _, records := range both {
		for _, ids := range both {
			addForms(form{multi: true, ids: ids, guards: records, puts: records})
			for _, timed := range both {
				addForms(form{ids: ids, timed: timed}) // merged
				f := form{alone: true, ids: ids, timed: timed}
				array, one, guarded, put, fresh := f, f, f, f, f
				array.guards, array.puts = records, records
				one.oneEvent, one.guards, one.puts = true, records, records
				guarded.oneEvent, guarded.guards = true, true
				put.oneEvent, put.puts = true, true
				fresh.oneEvent, fresh.inserts = true, true
				addForms(array, one, guarded, put, fresh)
				if ids { // an event or an id carries the nonce; without an event the nonce serves as the id
					one.noEvent, put.noEvent, fresh.noEvent = records, true, true
					addForms(one, put, fresh)
				}
			}
		}
	}
}

func addForms(all ...form) {
	for _, f := range all {
		commitStatements[f] = sync.OnceValue(f.statement)
	}
}

// parameter matches a parameter of a statement.
var parameter = regexp.MustCompile(`\$[0-9]+`)

// statement returns the statement of a form.
func (f form) statement() commitStatement {
	var parts []string
	for part, has := range map[string]bool{
		"multi":   f.multi,
		"alone":   f.alone,
		"event":   !f.noEvent,
		"named":   f.ids,
		"guarded": f.guards,
		"puts":    f.puts,
		"inserts": f.inserts,
		"record":  f.puts || f.inserts,
		"records": f.guards || f.puts,
		"checked": f.guards || f.puts,
		"timed":   f.timed,
	} {
		if has {
			parts = append(parts, part)
		}
	}
	file := "append"
	if f.oneEvent {
		file = "append_one"
	}
	return numbered(sqlFiles.Statement(file, parts...))
}

// numbered renumbers the parameters of a statement, because PostgreSQL lets none be left out.
func numbered(sql string) commitStatement {
	var args []int
	sql = parameter.ReplaceAllStringFunc(sql, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		at := slices.Index(args, n-1)
		if at < 0 {
			at = len(args)
			args = append(args, n-1)
		}
		return "$" + strconv.Itoa(at+1)
	})
	return commitStatement{sql, args}
}
