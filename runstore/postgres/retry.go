package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// retry attempts an operation until its outcome is known. It repeats an attempt that was not applied if the
// error is retryable. After an attempt that may have been applied it calls settle, which reports whether the
// attempt was applied; if it was not and never will be, retry repeats it. For an operation that may be
// applied twice, such as a read, settle is nil.
func (e *engine) retry(ctx context.Context, attempt func() error, settle func(t *outcome.Backoff) (applied bool, err error)) error {
	for t := e.backoff(); ; {
		err := attempt()
		if err == nil || outcome.Definite(err) && !errors.As(err, new(oldSchema)) {
			return err
		}
		switch class := classify(err); {
		case class == classClosed:
			return runstore.ErrClosed
		case class == classRolledBack:
			return e.rejected(ctx, err)
		case class == classAmbiguous && settle != nil:
			if ctx.Err() != nil {
				return outcome.Unknown(outcome.Cause(ctx, err))
			}
			if applied, unsettled := settle(t); unsettled != nil {
				return outcome.Unknown(errors.Join(err, unsettled))
			} else if applied {
				return nil
			}
		}
		if !t.More(ctx) {
			return outcome.NotApplied(ctx, err)
		}
	}
}

// perform sends a write until its outcome is known.
func (e *engine) perform(ctx context.Context, r *request) (*writeResult, error) {
	r.ctx = ctx
	result := &r.result
	err := e.retry(ctx, func() error {
		err := e.refreshBase(ctx, r.fence.Token().Epoch())
		r.epoch, _ = e.positions.current()
		r.nonce, r.timed = newNonce(), e.timed.has(r)
		if err == nil {
			err = e.queues.send(r)
		} else if classify(err) == classAmbiguous { // only a read was sent
			err = notSent{err}
		}
		if err != nil {
			return err
		}
		e.timed.learn(r)
		if r.result.status == statusApplied && !r.heartbeat() {
			e.notifier.committed(r)
		}
		return nil
	}, func(t *outcome.Backoff) (applied bool, err error) {
		settled, err := e.settle(ctx, r, t)
		if settled != nil {
			result = settled
			e.notifier.committed(r)
		}
		return settled != nil, err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// settle returns the result of an ambiguous write, or nil if the write was not applied and never
// will be.
func (e *engine) settle(ctx context.Context, r *request, t *outcome.Backoff) (*writeResult, error) {
	for {
		st := &statement{
			sql:      sqlWriteSettle,
			args:     []any{[]byte(r.run), r.nonce, r.resultKey, int64(0), int16(r.operation())},
			requests: []*request{r},
		}
		st.read = st.readSettled
		st.onConn = func() { st.args[3] = e.clock.MostSince(r.sent).Microseconds() }
		answers, err := e.roundTrip(ctx, []*statement{st})
		switch {
		case err == nil && (answers[0].status == statusApplied || answers[0].status == statusAppliedBefore):
			a := &answers[0]
			if n := r.appends(); a.last == 0 && n > 0 {
				a.last = a.first + runstore.Seq(n) - 1
			}
			if err = e.findTerm(ctx, r, a); err == nil {
				return a, nil
			}
		case err == nil && answers[0].status == statusEvicted && r.inBatches():
			return nil, errEvicted
		case err == nil:
			var forgotten error
			if forgotten, err = e.forgottenSince(ctx, r); err == nil && forgotten != nil {
				return nil, forgotten
			}
		}
		switch {
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

// findTerm corrects the time of a settled grant without writes after which another handle took the lease:
// tapestore.settle returns a time before it was sent. That stays if the run has too many terms since, or was
// purged.
func (e *engine) findTerm(ctx context.Context, r *request, a *writeResult) error {
	if r.operation() != opAcquire || a.head.State != rules.None || a.resultToken != 0 {
		return nil
	}
	err := e.readOnce(ctx, func(q *query) error {
		terms, err := q.terms(r.run)
		for _, term := range terms {
			if term.Token == a.head.Token && !term.GrantedAt.IsZero() {
				a.now = term.GrantedAt
			}
		}
		return err
	})
	if errors.Is(err, runstore.ErrNotFound) {
		return nil
	}
	return err
}

// forgottenSince returns an error if the trace of a write that was not found may have been deleted since
// the write was sent: by a purge, or because the run has more results than it remembers. A creation and a
// purge leave their traces in the run's row, which outlives the run, and a heartbeat needs none. The row has
// the last 16 traces of grants, creations and purges, so it can evict that of a creation or a purge only if the
// run was created and granted many times since.
//
// It reads after settle, whose snapshot may be older than a purge that settle waited for, and which
// itself compares the results with the time until it was sent: while it waited for the run's lock, other
// writes may have evicted the trace. A purge of a run with anything in it raises version_floor.
func (e *engine) forgottenSince(ctx context.Context, r *request) (forgotten, err error) {
	w := r.write
	if w == nil {
		return nil, nil
	}
	conn, done, err := e.connect(ctx, forRead)
	if err != nil {
		return nil, err
	}
	defer done()
	var purgedEver, evictsPurges, evicts bool
	var age, oldest int64
	err = conn.QueryRow(ctx, e.sql(sqlRunForgotten), []byte(r.run), r.resultKey == nil).Scan(&purgedEver, &evictsPurges, &age, &evicts, &oldest)
	// The ages are compared with the time until the end of this request, not until its start: the run
	// may have been purged or created, or have got its oldest result, a moment after the write was sent. That time must
	// not be too short, hence MostSince.
	since := e.clock.MostSince(r.sent).Microseconds()
	deletable := purgedEver
	if w.purge || w.op == opCreate {
		deletable = evictsPurges
	}
	switch {
	case err != nil:
		return nil, err
	case deletable && age <= since:
		return errPurged, nil
	case r.inBatches() && evicts && oldest <= since:
		return errEvicted, nil
	}
	return nil, nil
}

// errPurged is the error of an ambiguous write whose trace a purge, or many grants, may have deleted.
var errPurged = fmt.Errorf("postgres: the run may have been purged since: %w", runstore.ErrForgotten)

var errEvicted = fmt.Errorf("postgres: the run had more writes since than it remembers: %w", runstore.ErrForgotten)

// inBatches reports whether the trace that r leaves is a row in batches, which may be evicted.
func (r *request) inBatches() bool {
	w := r.write
	if w == nil || w.purge {
		return false
	}
	return r.resultKey != nil || len(w.payloads) == 0 && w.op != opCreate && w.op != opAcquire
}

// operation returns the operation of r for tapestore.settle, where a heartbeat counts as a commit.
func (r *request) operation() operation {
	if r.write == nil {
		return opCommit
	}
	return r.write.op
}

// backoff returns the schedule of one operation's retries: from 4 ms, for at most RetryTimeout.
func (e *engine) backoff() *outcome.Backoff {
	return outcome.NewBackoff(e.clock, e.opts.RetryTimeout, 4*time.Millisecond)
}
