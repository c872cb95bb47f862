package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// ErrFree reports that a lease could not be broken because no grant is current: the last one was
// released or revoked, or there was none. Every fence of the run is refused already. The error
// matches runstore.ErrConflict, too.
var ErrFree = errors.New("the lease is free")

// freeError is ErrFree with the run's last token.
type freeError struct{ last runstore.Token }

func (e *freeError) Error() string {
	if e.last == 0 {
		return ErrFree.Error() + ", and was never granted"
	}
	return fmt.Sprintf("%v, the last token is %v", ErrFree, e.last)
}

func (e *freeError) Is(target error) bool { return target == ErrFree || target == runstore.ErrConflict }

const (
	// BreakKind is the kind of the event that [Break] appends. Its data is a [BreakEntry].
	BreakKind = "lease"
	// BreakKey is the key of the record that a quiet [Break] puts instead. Its value is a
	// [BreakEntry], that of the last quiet break.
	BreakKey runstore.RecordKey = "lease/break"
	// BreakReactor is the reactor of the grant that [Break] makes.
	BreakReactor runstore.Reactor = "operator"
)

const (
	// breakTimeout, 15 s, bounds the request that ends the grant, repetitions included. It is
	// shorter than an operator waits before repeating the command.
	breakTimeout = 15 * time.Second
	// settleTimeout, 5 s, bounds the completion of the former holder's step, repetitions included. With
	// breakTimeout and the 5 s of the revocation it stays below the 30 s of the inspector's request.
	settleTimeout = 5 * time.Second
	// maxBreaks is how often a break of whatever grant is current follows a token that moved.
	maxBreaks = 10
)

// BreakRequest asks for the end of a grant.
type BreakRequest struct {
	Run runstore.RunID
	// Token is the token of the grant to end, which the operator has read. A later grant is not
	// ended.
	Token runstore.Token
	// Whoever ends whatever grant is current. Token is then 0.
	Whoever bool
	// Operator names the person who decides, and Reason says why: 1 to runstore.MaxOwner bytes of
	// UTF-8 each.
	Operator runstore.Owner
	Reason   string
	// Quiet puts the record [BreakKey] instead of appending an event, for a run whose journal must
	// not have entries of another program.
	Quiet bool
}

// BreakEntry is what a run stores about a break, as a JSON object.
type BreakEntry struct {
	// Broken is the token of the grant that was ended, From and Reactor are its owner and reactor.
	Broken   runstore.Token   `json:"broken_token"`
	From     runstore.Owner   `json:"from"`
	Operator runstore.Owner   `json:"operator"`
	Reactor  runstore.Reactor `json:"reactor"`
	Reason   string           `json:"reason"`
}

// ParseBreak returns the entry of an event of kind [BreakKind] or of a record [BreakKey]. ok is
// false for the data of another program.
func ParseBreak(data []byte) (e BreakEntry, ok bool) {
	err := json.Unmarshal(data, &e)
	return e, err == nil && e.Operator != "" && e.Broken > 0
}

// Broken is the result of [Break].
type Broken struct {
	// Former is the holder whose grant was ended.
	Former runstore.Holder
	// Live reports whether its lease had not expired.
	Live bool
	// Token is the token of the grant that ended it.
	Token runstore.Token
	// Time is when it was ended, on the store clock.
	Time time.Time
	// Seq is the seq of the event, 0 for a quiet break.
	Seq runstore.Seq
}

// Break takes a run's lease away from its holder and leaves it free (break-glass). Use it when a
// holder renews its lease but must not go on. It is for operators: a successor acquires the lease,
// with Preempt if necessary.
//
// Break makes a grant of its own, which preempts the current one, and then revokes that grant. When
// Break has returned without an error,
//
//   - the token is higher, and the store refuses every write under the former holder's fence. Writes
//     without a fence are not refused;
//   - no step over two runs that the former holder led is in progress ([crossrun.Settle]): a write of
//     that holder which is still under way changes neither run;
//   - the run has stored who broke the lease and why, in the same atomic step: as an event of kind
//     [BreakKind], or as the record [BreakKey];
//   - the lease is free, or a successor has acquired it. The grant of Break lasts runstore.MinTTL,
//     1 ms, so if Break cannot revoke it, or the process ends in between, the lease has expired by
//     then. In either case the successor learns that the former grant was revoked or expired, never
//     that it was released, and recovers unfinished work.
//
// Of several breaks of one token at most one succeeds.
//
// A request whose reply is lost is repeated under its grant id, for up to 15 s. Errors:
//
//   - ErrInvalid or ErrTooLarge: the request names neither a token nor Whoever, or a bad name;
//   - ErrNotFound: there is no such run;
//   - [ErrFree]: there is nothing to break;
//   - ErrConflict, as *runstore.ConflictError with the run's last token: the token has moved;
//   - ErrStoreBehind: the run has never had this token;
//   - ErrUnavailable: nothing was changed;
//   - ErrUnknownOutcome: the grant may or may not have been ended. A repeat of the break of the same
//     token ends it, or reports that the token has moved;
//   - ErrUnknownOutcome with the result set (Broken.Token is not 0): the grant was ended, but a step
//     over two runs that its holder led could not be completed, and may still change the other run.
//     Break's own grant is then left to expire instead of being revoked, so that a break of its token
//     completes the step. The next holder completes it, too.
func Break(ctx context.Context, store runstore.RunStore, req BreakRequest) (Broken, error) {
	if err := req.check(); err != nil {
		return Broken{}, err
	}
	for n := 1; ; n++ {
		head, err := store.GetRun(ctx, req.Run)
		if err != nil {
			return Broken{}, err
		}
		broken, err := req.end(ctx, store, head)
		if !req.Whoever || n == maxBreaks || !errors.Is(err, runstore.ErrConflict) || errors.Is(err, ErrFree) {
			return broken, err
		}
	}
}

// check refuses a request that is not complete.
func (req BreakRequest) check() error {
	faults := []error{runstore.CheckRunID(req.Run)}
	refuse := func(kind error, field, format string, args ...any) {
		faults = append(faults, &runstore.InputError{Kind: kind, Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	switch {
	case req.Token < 0:
		refuse(runstore.ErrInvalid, "token", "%d is negative", int64(req.Token))
	case req.Token == 0 && !req.Whoever:
		refuse(runstore.ErrInvalid, "token", "is missing: name the token of the grant to end, or ask to end whatever grant is current")
	case req.Token != 0 && req.Whoever:
		refuse(runstore.ErrInvalid, "token", "is given, and so is the wish to end whatever grant is current")
	}
	for _, text := range []struct{ field, value string }{{"operator", string(req.Operator)}, {"reason", req.Reason}} {
		switch {
		case text.value == "":
			refuse(runstore.ErrInvalid, text.field, "is empty")
		case len(text.value) > runstore.MaxOwner:
			refuse(runstore.ErrTooLarge, text.field, "%d bytes, the limit is %d", len(text.value), runstore.MaxOwner)
		case !utf8.ValidString(text.value):
			refuse(runstore.ErrInvalid, text.field, "is not valid UTF-8")
		}
	}
	return errors.Join(faults...)
}

// end ends the current grant of a head that was read.
func (req BreakRequest) end(ctx context.Context, store runstore.RunStore, head runstore.Run) (Broken, error) {
	refused := func(err error) (Broken, error) {
		return Broken{}, &runstore.OpError{Op: "break lease", Run: req.Run, Err: err}
	}
	switch {
	case !req.Whoever && req.Token > head.Token:
		return refused(&runstore.StoreBehindError{Field: "token", Presented: int64(req.Token), Known: int64(head.Token)})
	case !req.Whoever && req.Token < head.Token:
		return refused(&runstore.ConflictError{Guard: "token", Token: head.Token, NextSeq: head.LastSeq + 1, Status: head.Status})
	case head.Holder.Token == 0:
		return refused(&freeError{head.Token})
	}
	granted, err := req.preempt(ctx, store, head)
	if err != nil {
		return Broken{}, err
	}
	broken := Broken{
		Former: head.Holder, Live: granted.Former == runstore.EndPreempted,
		Token: granted.Token, Time: granted.Committed.Time, Seq: granted.Committed.FirstSeq,
	}
	if err := settle(context.WithoutCancel(ctx), store, req.Run); err != nil {
		return broken, &runstore.OpError{
			Op: "break lease", Run: req.Run, Err: runstore.ErrUnknownOutcome,
			Cause: fmt.Errorf("the grant of token %v was ended, but a step over two runs that its holder led could not be completed; to complete it, break the lease of token %v: %w",
				head.Token, granted.Token, err),
		}
	}
	if !granted.Ended {
		// Not the release of the holder: the successor must not conclude that no work was left
		// unfinished.
		revoke := runstore.NewBatch(req.Run, runstore.AtToken(granted.Token))
		revoke.Release = true
		// An error leaves a lease that has expired or that a successor has acquired.
		_ = retryBounded(context.WithoutCancel(ctx), DefaultReleaseTimeout, req.Run, "commit", func(ctx context.Context) error {
			_, err := store.Commit(ctx, revoke)
			return err
		})
	}
	return broken, nil
}

// settle completes the step over two runs that the run leads, if any. It needs no grant, because
// Break's own may have been followed by another. A run that was purged meanwhile leads no step.
func settle(ctx context.Context, store runstore.RunStore, run runstore.RunID) error {
	err := retryBounded(ctx, settleTimeout, run, "complete the step in progress", func(ctx context.Context) error {
		_, err := crossrun.Settle(ctx, store, run)
		return err
	})
	if runstore.KindOf(err) == runstore.ErrNotFound {
		return nil
	}
	return err
}

// preempt makes the grant that ends the current one.
func (req BreakRequest) preempt(ctx context.Context, store runstore.RunStore, head runstore.Run) (granted runstore.Granted, err error) {
	entry, err := json.Marshal(BreakEntry{
		Broken: head.Token, From: head.Holder.Owner, Reactor: head.Holder.Reactor, Operator: req.Operator, Reason: req.Reason,
	})
	if err != nil {
		return granted, err
	}
	acquire := runstore.AcquireRequest{
		Run:     req.Run,
		Preempt: req.Reason,
		Guards:  []runstore.Guard{runstore.AtToken(head.Token)},
		LeaseSpec: runstore.LeaseSpec{
			Owner: req.Operator, Reactor: BreakReactor, TTL: runstore.MinTTL, Grant: runstore.NewGrantID(),
		},
	}
	if req.Quiet {
		acquire.Writes.Put(BreakKey, entry)
	} else {
		acquire.Writes.Append(BreakKind, entry)
	}
	var unknown atomic.Bool
	var result atomic.Pointer[runstore.Granted] // a call that was abandoned may still return
	err = retryBounded(ctx, breakTimeout, req.Run, "acquire lease", func(ctx context.Context) error {
		granted, err := store.AcquireLease(ctx, acquire)
		if err == nil {
			result.Store(&granted)
		} else if runstore.OutcomeOf(err) == runstore.Unknown {
			unknown.Store(true)
		}
		return err
	})
	switch {
	case err == nil:
		return *result.Load(), nil
	case unknown.Load() && runstore.OutcomeOf(err) == runstore.NotApplied && !errors.Is(err, runstore.ErrConflict):
		// A conflict is definite: the store recognizes the grant id before it checks the guards, and a
		// copy that is still under way finds another token. Any other refusal leaves open what became
		// of the first copy.
		err = &runstore.OpError{Op: "break lease", Run: req.Run, Err: runstore.ErrUnknownOutcome, Cause: err}
	}
	return granted, err
}
