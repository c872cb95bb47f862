package tape

import (
	"context"
	"iter"

	"github.com/tapestore/tapestore/runstore"
)

type sized interface{ size() int }

// listed returns the row of a record of a list. A row that cannot be read or answered is logged, and
// ok is false, so that it does not hide the others. what names the rows in the log.
func listed[R sized](ctx context.Context, t *Tape, part *partScan, what string, decode func(runstore.RunID, runstore.Record) (R, error),
	run runstore.RunID, rec runstore.Record) (row R, ok bool) {
	row, err := decode(run, rec)
	if err == nil && row.size() > part.room() {
		err = errUnanswerable
	}
	if err != nil {
		t.leaveOut(ctx, what, run, rec.Key, err)
	}
	return row, err == nil
}

// list returns up to limit of the wanted rows in entries, 0 for no limit, each once, in order, and as
// many as fit into an answer. Rows that cannot be read or answered are left out. part is the part of the
// list that is read, nil for a whole list.
func list[R sized, A any](ctx context.Context, t *Tape, part *partScan, what string, decode func(runstore.RunID, runstore.Record) (R, error),
	entries iter.Seq2[runstore.IndexEntry, error], limit int, wanted func(R) (A, bool)) ([]A, error) {
	type identity struct {
		run runstore.RunID
		key runstore.RecordKey
	}
	seen := map[identity]bool{} // a row that moves within the queues during the scans may appear twice
	var answers []A
	size := 0
	for entry, err := range entries {
		if err != nil {
			return nil, err
		}
		row, ok := listed(ctx, t, part, what, decode, entry.Run, entry.Record)
		if !ok {
			continue
		}
		answer, ok := wanted(row)
		id := identity{entry.Run, entry.Record.Key}
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		if size += row.size(); size > part.room() {
			break
		}
		if answers = append(answers, answer); len(answers) == limit {
			part.took()
			break
		}
	}
	return answers, nil
}
