package postgres

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// A purge ends with its commit: from then on the journal, the records and the results of the run are
// garbage, which no reader finds. collect deletes it in steps, each a short transaction that
// locks no run.
//
// Who purged collects what the purge left, until its context ends, and then does one step for
// others. What a crash or a deadline leaves is collected by later purges, and by every handle
// when it is opened. Two that collect at once take different runs. An error ends the collecting and
// is not returned: the purge was applied.

// collectStep is how many rows a step deletes. With the places of records it takes a few
// milliseconds to some tens.
const collectStep = 2000

// $1 run, NULL: any. $2 rows.
const collect = `SELECT tapestore.collect($1::bytea, $2::integer)`

// collectAfter deletes what the purge of a run left.
func (s *Store) collectAfter(ctx context.Context, id runstore.RunID) {
	for s.collectOnce(ctx, []byte(id)) {
	}
	s.collectOnce(ctx, nil)
}

// collectLeft deletes what all purges left, until the handle is closed.
func (s *Store) collectLeft() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for s.collectOnce(ctx, nil) {
	}
}

// collectOnce is one step. It reports whether there may be more to do, and false after an error.
func (s *Store) collectOnce(ctx context.Context, id []byte) (more bool) {
	conn, done, err := s.connect(ctx, forCommit)
	if err != nil { // also if the handle is closed
		return false
	}
	defer done()
	q := &query{ctx, s, conn.Conn()}
	err = q.each(collect, []any{id, collectStep}, []any{&more}, func() error { return nil })
	return err == nil && more
}
