package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// perform sends a write until its outcome is known: what was surely not applied is
// sent again where that may help, what may have been is settled first.
func (s *Store) perform(ctx context.Context, r *request) (*answer, error) {
	r.ctx = ctx
	for t := s.tries(); ; {
		r.nonce, r.hints = newNonce(), s.hints.of(r)
		err := s.reach(ctx, r.fence.Token().Epoch())
		if err == nil {
			err = s.lanes.send(r)
		} else if fateOf(err) == lost { // only a read was
			err = notSent{err}
		}
		if err == nil {
			s.hints.learn(r)
			if r.answer.verdict == applied && !r.heartbeat() {
				s.notifier.committed(r)
			}
			return &r.answer, nil
		}
		switch fateOf(err) {
		case closed:
			return nil, runstore.ErrClosed
		case failed:
			return nil, s.rejected(ctx, err)
		case again:
		case lost:
			if ctx.Err() != nil {
				return nil, outcome.Unknown(outcome.Cause(ctx, err))
			}
			if known, unsettled := s.settle(ctx, r, t); unsettled != nil {
				return nil, outcome.Unknown(errors.Join(err, unsettled))
			} else if known != nil {
				s.notifier.committed(r)
				return known, nil
			}
		}
		if !t.More(ctx) {
			return nil, outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

// settleLost finds out what became of a write whose reply was lost, and sees to it
// that one which was not applied never is.
//
// $1 run, $2 nonce, $3 name of the result, $4 microseconds since it was sent, $5 operation.
const settleLost = `SELECT a.*, NULL::bytea[] FROM tapestore.settle($1::bytea, $2::bigint, $3::bytea, $4::bigint, $5::smallint) AS a`

// settle returns the answer that was lost, or nil if the write was not applied and
// never will be.
func (s *Store) settle(ctx context.Context, r *request, t *outcome.Backoff) (*answer, error) {
	for {
		u := &unit{
			sql:      settleLost,
			args:     []any{[]byte(r.run), r.nonce, r.result, int64(0), int16(r.operation())},
			requests: []*request{r},
		}
		u.read = u.readAnswer
		u.ready = func() { u.args[3] = s.here.Since(r.sent).Microseconds() }
		answers, err := s.ask(ctx, []*unit{u})
		switch {
		case err == nil && (answers[0].verdict == applied || answers[0].verdict == appliedBefore):
			a := &answers[0]
			if n := r.appends(); a.last == 0 && n > 0 {
				a.last = a.first + runstore.Seq(n) - 1
			}
			return a, nil
		case err == nil && answers[0].verdict == forgotten && r.remembered():
			return nil, errForgotten
		case err == nil:
			var purged bool
			if purged, err = s.purgedSince(ctx, r); err == nil && purged {
				return nil, errPurged
			}
		}
		switch {
		case err == nil:
			return nil, nil
		case fateOf(err) == closed || fateOf(err) == failed && (!timedOut(err) || ctx.Err() != nil):
			return nil, err
		}
		if !t.More(ctx) {
			return nil, outcome.Cause(ctx, err)
		}
	}
}

// purgedSince reports whether the run of a write whose reply was lost may have been purged since
// the write was sent. A purge hides the trace that settle looks for, so the write may have been
// applied before. A creation and a purge leave their traces in the run's row, which outlives the
// run, and a heartbeat needs none.
//
// It reads after settle, whose snapshot may be older than a purge that settle waited for. A purge of
// a run with anything in it raises version_floor.
func (s *Store) purgedSince(ctx context.Context, r *request) (bool, error) {
	if w := r.write; w == nil || w.purge || w.op == opCreate {
		return false, nil
	}
	conn, done, err := s.connect(ctx, toRead)
	if err != nil {
		return false, err
	}
	defer done()
	var purgedEver, purgedNow bool
	var age int64
	err = conn.QueryRow(ctx, s.sql(selectPurges), []byte(r.run)).Scan(&purgedEver, &purgedNow, &age)
	// The run's age is compared with the time to the end of this request, not to its start: it may
	// have been purged and created within a moment after the write.
	return purgedEver && (purgedNow || time.Duration(age)*time.Microsecond <= s.here.Since(r.sent)), err
}

// selectPurges: $1 run. The row is there: settle inserts it.
const selectPurges = `SELECT version_floor > 0, purged, (extract(epoch FROM clock_timestamp() - created) * 1000000)::bigint
	FROM tapestore.runs WHERE id = $1::bytea`

// errPurged is the error of a write in doubt whose trace may have gone with its run.
var errPurged = errors.New("postgres: the run was purged since")

var errForgotten = errors.New("postgres: the run had more writes since than it remembers")

// remembered reports whether the trace of r is a row in batches.
func (r *request) remembered() bool {
	w := r.write
	if w == nil || w.purge {
		return false
	}
	return r.result != nil || len(w.payloads) == 0 && w.op != opCreate && w.op != opAcquire
}

// operation returns what r does, as tapestore.settle distinguishes it.
func (r *request) operation() operation {
	if r.write == nil {
		return opCommit
	}
	return r.write.op
}

// tries paces the repeats of one operation.
func (s *Store) tries() *outcome.Backoff {
	return outcome.NewBackoff(s.here, s.opts.RetryTimeout, 4*time.Millisecond)
}
