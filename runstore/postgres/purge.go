package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// A purge ends with its commit. From then on the journal, the records and the results of the run
// are garbage, which no reader finds. tapestore.collect deletes the garbage in steps, each a short
// transaction that locks no run.
//
// The caller that purged collects that run's garbage, and then runs one step for others. An error, also
// that of an ended context, ends the caller's collecting and is not returned, because the purge was
// applied. The handle then continues in the background. Garbage left by a crash is collected by later
// purges, and by every handle when it is opened. Concurrent collectors take different runs.
//
// Rows may be large and the server busy, so a step may exceed statement_timeout. The server then rolls
// the step back, and every repetition of it would fail too. So the handle halves its steps until that
// garbage is deleted.

// collectStep is how many rows a step deletes at first. With the index entries of records such a step
// usually takes a few milliseconds to some tens.
const collectStep = 2000

// collectAfter deletes the garbage of the run that was purged, and runs one step for another run.
func (e *engine) collectAfter(ctx context.Context, id runstore.RunID) {
	var err error
	for more := true; more && err == nil; {
		more, err = e.collectOnce(ctx, []byte(id))
	}
	if err == nil {
		_, err = e.collectOnce(ctx, nil)
	}
	if err != nil {
		signal(e.leftGarbage)
	}
}

// collectIfUnknown makes the background collect the garbage of a purge that may have been applied.
func (e *engine) collectIfUnknown(err error) {
	if errors.Is(err, runstore.ErrUnknownOutcome) {
		signal(e.leftGarbage)
	}
}

const (
	// minCollectPause is the first pause of collectLeft: 100 ms, some steps of another collector.
	minCollectPause = 100 * time.Millisecond
	// maxCollectPause is the longest pause of collectLeft: one minute, so that a role that may not delete
	// adds no load.
	maxCollectPause = time.Minute
)

// collectLeft deletes the garbage of all purges after each signal of leftGarbage, until the handle is
// closed. It repeats the collecting, with growing pauses, until no garbage is left: the step that an ended
// context interrupted may still have its run locked, and the server may be unreachable.
func (e *engine) collectLeft() {
	ctx := e.stopped
	for {
		select {
		case <-e.leftGarbage:
		case <-ctx.Done():
			return
		}
		for pause := minCollectPause; ; pause = min(2*pause, maxCollectPause) {
			for more := true; more; {
				more, _ = e.collectOnce(ctx, nil) // garbageLeft finds what an error leaves
			}
			if !e.garbageLeft(ctx) || !pace.Pause(ctx, pause) {
				break
			}
		}
	}
}

// garbageLeft reports whether there may be garbage left, or whether that is unknown because of an error.
func (e *engine) garbageLeft(ctx context.Context) (left bool) {
	err := e.readOnce(ctx, func(q *query) error {
		return q.each(sqlPurgeLeft, nil, []any{&left}, func() error { return nil })
	})
	return left || err != nil
}

// collectOnce runs one step. It reports whether there may be more to delete. A step that the server
// cancelled is no error if the next step will be smaller.
func (e *engine) collectOnce(ctx context.Context, id []byte) (more bool, err error) {
	conn, done, err := e.connect(ctx, forCommit)
	if err != nil { // also if the handle is closed
		return false, err
	}
	defer done()
	q := &query{ctx, e, conn.Conn()}
	rows := e.collectRows.Load()
	err = q.each(sqlPurgeStep, []any{id, rows}, []any{&more}, func() error { return nil })
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "57014" && ctx.Err() == nil && rows > 1 {
		e.collectRows.CompareAndSwap(rows, rows/2)
		return true, nil
	}
	if err == nil && !more {
		e.collectRows.Store(collectStep) // the next garbage may have smaller rows
	}
	return more && err == nil, err
}
