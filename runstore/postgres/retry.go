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
func (s *Store) perform(ctx context.Context, r *request) (*writeResult, error) {
	r.ctx = ctx
	for t := s.backoff(); ; {
		r.nonce, r.hints = newNonce(), s.hints.of(r)
		err := s.refreshBase(ctx, r.fence.Token().Epoch())
		if err == nil {
			err = s.queues.send(r)
		} else if classify(err) == classAmbiguous { // only a read was
			err = notSent{err}
		}
		if err == nil {
			s.hints.learn(r)
			if r.result.status == statusApplied && !r.heartbeat() {
				s.notifier.committed(r)
			}
			return &r.result, nil
		}
		switch classify(err) {
		case classClosed:
			return nil, runstore.ErrClosed
		case classRolledBack:
			return nil, s.rejected(ctx, err)
		case classRetryable:
		case classAmbiguous:
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
func (s *Store) settle(ctx context.Context, r *request, t *outcome.Backoff) (*writeResult, error) {
	for {
		st := &statement{
			sql:      settleLost,
			args:     []any{[]byte(r.run), r.nonce, r.resultKey, int64(0), int16(r.operation())},
			requests: []*request{r},
		}
		st.read = st.readWrite
		st.onConn = func() { st.args[3] = s.clock.Since(r.sent).Microseconds() }
		answers, err := s.roundTrip(ctx, []*statement{st})
		switch {
		case err == nil && (answers[0].status == statusApplied || answers[0].status == statusAppliedBefore):
			a := &answers[0]
			if n := r.appends(); a.last == 0 && n > 0 {
				a.last = a.first + runstore.Seq(n) - 1
			}
			return a, nil
		case err == nil && answers[0].status == statusEvicted && r.inBatches():
			return nil, errEvicted
		case err == nil:
			return nil, nil
		case classify(err) == classClosed || classify(err) == classRolledBack && (!timedOut(err) || ctx.Err() != nil):
			return nil, err
		}
		if !t.More(ctx) {
			return nil, outcome.Cause(ctx, err)
		}
	}
}

var errEvicted = errors.New("postgres: the run had more writes since than it remembers")

// remembered reports whether the trace of r is a row in batches.
func (r *request) inBatches() bool {
	w := r.write
	if w == nil || w.purge {
		return false
	}
	return r.resultKey != nil || len(w.payloads) == 0 && w.op != opCreate && w.op != opAcquire
}

// operation returns what r does, as tapestore.settle distinguishes it.
func (r *request) operation() operation {
	if r.write == nil {
		return opCommit
	}
	return r.write.op
}

// tries paces the repeats of one operation.
func (s *Store) backoff() *outcome.Backoff {
	return outcome.NewBackoff(s.clock, s.opts.RetryTimeout, 4*time.Millisecond)
}
