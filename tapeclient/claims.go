package tapeclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Dispatch calls the counterparty of an effect under its idempotency key, as [Call] does.
type Dispatch func(ctx context.Context, e *tapepb.EffectRecord) (response string, err error)

// DispatchEffects looks for outbox effects that are due, of one connector or of all (""), claims
// each, calls dispatch and reports the result, until ctx ends; it then returns the cause. After an
// error of dispatch
//
//   - that matches [ErrPermanent], the effect is FAILED;
//   - that matches [ErrNotSent], or for an IDEMPOTENT effect, the effect is due again after
//     Loop.Retry;
//   - otherwise the effect is UNKNOWN, for a reconciler: a repeat might act twice.
//
// A NON_IDEMPOTENT effect is also UNKNOWN, and dispatch is not called, if another claim of
// it may have lapsed without a report: the listed effect still has a claim, or a claim was granted
// between the list and this claim. The dispatcher of that claim may have called the counterparty.
// Loop.OnError receives an error that matches [ErrUnsettled]. So a dispatcher that dies, or loses the
// server, between its claim and its report leaves such an effect to a reconciler, whether it called or not.
//
// Every report presents the generation of its claim. If the claim has lapsed and another process
// has claimed the effect since, the report changes nothing. An outcome that is not recorded,
// because the effect was settled otherwise or claimed again, is passed to Loop.OnError: the
// counterparty was called.
func (c *Client) DispatchEffects(ctx context.Context, l Loop, connector string, dispatch Dispatch) error {
	l = l.withDefaults()
	var pages pages
	return l.run(ctx, func(ctx context.Context, limit int) ([]job, error) {
		var listed *tapepb.ListEffectsToDispatchResponse
		err := pages.look(func(token string) (n int, next string, err error) {
			listed, err = c.tape.ListEffectsToDispatch(ctx, &tapepb.ListEffectsToDispatchRequest{Limit: int64(limit), Connector: connector, PageToken: token})
			return len(listed.GetEffects()), listed.GetNextPageToken(), err
		})
		var jobs []job
		for _, e := range listed.GetEffects() {
			jobs = append(jobs, job{e.GetRunId() + "\x00" + e.GetIdempotencyKey(), func(ctx context.Context) (done bool, err error) {
				return c.dispatch(ctx, l, e, dispatch)
			}})
		}
		return jobs, err
	})
}

func (c *Client) dispatch(ctx context.Context, l Loop, e *tapepb.EffectRecord, dispatch Dispatch) (done bool, err error) {
	name, sent := c.claimer(), time.Now()
	claim, err := c.claiming.ClaimEffectDispatch(ctx, &tapepb.ClaimEffectDispatchRequest{
		RunId: e.GetRunId(), IdempotencyKey: e.GetIdempotencyKey(), Claimer: name, LeaseTtlMs: l.TTL.Milliseconds(),
	})
	if err != nil {
		return false, err
	}
	current := claim.GetEffect()
	pending := current.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_PENDING
	if !claim.GetAcquired() && (current.GetDispatchClaimedBy() != name || !pending) {
		return false, nil // claimed by another dispatcher, or settled before the claim was repeated
	}
	generation := current.GetDispatchClaimGeneration()
	outcome := &tapepb.CompleteEffectRequest{RunId: e.GetRunId(), IdempotencyKey: e.GetIdempotencyKey(), ClaimGeneration: generation}
	failed := unreportedClaim(e, current)
	if failed == nil {
		failed = handle(ctx, l, sent, func(ctx context.Context) error {
			return carryOut(ctx, outcome, e.GetIdempotencyKey(), func(ctx context.Context, _ string) (string, error) { return dispatch(ctx, current) })
		})
	}
	// Report even if the loop is ending: the counterparty may have acted.
	ctx = context.WithoutCancel(ctx)
	if failed == nil {
		done, err := c.tape.CompleteEffect(ctx, outcome)
		switch is := done.GetDispatchClaimGeneration(); {
		case err != nil:
		case done.GetStatus() != outcome.GetStatus():
			err = fmt.Errorf("dispatch of %q: the outcome %v was not recorded: the effect is %v", e.GetIdempotencyKey(), outcome.GetStatus(), done.GetStatus())
		case is != generation:
			err = fmt.Errorf("dispatch of %q: the outcome %v under claim %d was not recorded: the effect has the outcome of claim %d, whose dispatcher called the counterparty too",
				e.GetIdempotencyKey(), outcome.GetStatus(), generation, is)
		}
		return err == nil, err
	}
	report := &tapepb.RecordDispatchAttemptRequest{
		RunId: e.GetRunId(), IdempotencyKey: e.GetIdempotencyKey(), Error: failure(failed), ClaimGeneration: generation,
	}
	if errors.Is(failed, ErrNotSent) || current.GetSemantics() == tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT {
		report.NextDispatchAtMs = l.retryAt()
	}
	_, err = c.tape.RecordDispatchAttempt(ctx, report)
	return err == nil, errors.Join(fmt.Errorf("dispatch of %q: %w", e.GetIdempotencyKey(), failed), err)
}

// failure returns the text of an error for a report, as valid UTF-8 of the size that a server stores. The error may
// quote any answer of a counterparty, and if its report were refused, the work would be repeated for ever.
func failure(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), tape.MaxAttemptError)], "\uFFFD")
}

// unreportedClaim returns an error that matches ErrUnsettled if a repeat of the effect may act twice and the
// dispatcher of an earlier claim may have called the counterparty without a report. listed is the
// effect as it was listed, granted is the effect with this dispatcher's claim. A report, an observation
// with a status and ReconcileEffect end a claim that has lapsed, so a listed effect that still has a claim
// was claimed by a dispatcher that reported nothing before the claim lapsed. Of a claim between the list and the
// grant the generation is left and, if it was reported, the attempt.
func unreportedClaim(listed, granted *tapepb.EffectRecord) error {
	switch granted.GetSemantics() {
	case tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT, tapepb.EffectSemantics_EFFECT_SEMANTICS_OBSERVE_ONLY: // the latter only reads
		return nil
	}
	if listed.GetDispatchClaimedBy() != "" || listed.GetDispatchClaimExpiresAtMs() != 0 { // a claimer's name may be empty
		return fmt.Errorf("not called: the claim of %q lapsed without a report, and its dispatcher may have called the counterparty: %w",
			listed.GetDispatchClaimedBy(), ErrUnsettled)
	}
	before, is := listed.GetDispatchClaimGeneration(), granted.GetDispatchClaimGeneration()
	reported := int64(granted.GetDispatchAttempts() - listed.GetDispatchAttempts())
	if is != 0 && is-before-1 > reported { // 0: the server has no generations
		return fmt.Errorf("not called: claim %d follows claim %d of the listed effect, and the dispatcher of a claim in between may have called the counterparty: %w",
			is, before, ErrUnsettled)
	}
	return nil
}

// handle calls a handler under a claim that was requested at sent. If the claim is too old by now,
// for example after a pause of the process, the handler is not called.
func handle(ctx context.Context, l Loop, sent time.Time, handler func(ctx context.Context) error) error {
	ctx, cancel := l.bound(ctx, sent)
	defer cancel()
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
	}
	return handler(ctx)
}

// Compensate compensates an obligation's effect and returns the result as JSON.
type Compensate func(ctx context.Context, o *tapepb.ObligationRecord) (result string, err error)

// ResolveObligations looks for obligations that are due or whose claim has lapsed, claims each,
// calls compensate and reports the result, until ctx ends; it then returns the cause. An obligation
// is COMPENSATED after a result, STUCK after an error that matches [ErrPermanent] or after the last
// attempt, and otherwise due again after Loop.Retry. After an error that matches [ErrNotSent], which is no
// attempt, it is due again when its claim lapses. Every report presents the generation of its claim.
func (c *Client) ResolveObligations(ctx context.Context, l Loop, compensate Compensate) error {
	l = l.withDefaults()
	var pages pages
	return l.run(ctx, func(ctx context.Context, limit int) ([]job, error) {
		var listed *tapepb.ListUnresolvedObligationsResponse
		err := pages.look(func(token string) (n int, next string, err error) {
			listed, err = c.tape.ListUnresolvedObligations(ctx, &tapepb.ListUnresolvedObligationsRequest{
				Limit: int32(limit), IncludePending: true, IncludeCommittedExpired: true, PageToken: token,
			})
			return len(listed.GetObligations()), listed.GetNextPageToken(), err
		})
		var jobs []job
		for _, o := range listed.GetObligations() {
			jobs = append(jobs, job{fmt.Sprintf("%s\x00%d", o.GetRunId(), o.GetSeq()), func(ctx context.Context) (done bool, err error) {
				return c.compensate(ctx, l, o, compensate)
			}})
		}
		return jobs, err
	})
}

func (c *Client) compensate(ctx context.Context, l Loop, o *tapepb.ObligationRecord, compensate Compensate) (done bool, err error) {
	name, sent := c.claimer(), time.Now()
	claim, err := c.tape.ClaimObligation(ctx, &tapepb.ClaimObligationRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Claimer: name, LeaseTtlMs: l.TTL.Milliseconds(),
	})
	if err != nil {
		return false, err
	}
	current := claim.GetObligation()
	if !claim.GetAcquired() && current.GetClaimedBy() != name {
		return false, nil // claimed by another process
	}
	generation, result := current.GetClaimGeneration(), ""
	failed := handle(ctx, l, sent, func(ctx context.Context) (err error) {
		result, err = compensate(ctx, current)
		return err
	})
	ctx = context.WithoutCancel(ctx) // report even if the loop is ending: the compensation may have happened
	if failed == nil {
		const compensated = tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED
		resolved, err := c.tape.ResolveObligation(ctx, &tapepb.ResolveObligationRequest{
			RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), ClaimGeneration: generation, ResultJson: result, Status: compensated,
		})
		switch is := resolved.GetClaimGeneration(); {
		case err != nil:
		case resolved.GetStatus() != compensated:
			err = fmt.Errorf("obligation %d of run %q: the compensation was not recorded: the obligation is %v", o.GetSeq(), o.GetRunId(), resolved.GetStatus())
		case is != generation:
			err = fmt.Errorf("obligation %d of run %q: the compensation under claim %d was not recorded: the obligation has the result of claim %d, whose worker compensated too",
				o.GetSeq(), o.GetRunId(), generation, is)
		}
		return err == nil, err
	}
	if errors.Is(failed, ErrNotSent) && !errors.Is(failed, ErrPermanent) {
		// A report would count as an attempt. Without one the claim lapses, and the obligation is listed again.
		return false, fmt.Errorf("obligation %d of run %q: %w", o.GetSeq(), o.GetRunId(), failed)
	}
	report := &tapepb.RecordObligationAttemptRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Error: failure(failed), ClaimGeneration: generation,
	}
	if !errors.Is(failed, ErrPermanent) {
		report.NextAttemptAtMs = l.retryAt()
	}
	_, err = c.tape.RecordObligationAttempt(ctx, report)
	return err == nil, errors.Join(fmt.Errorf("obligation %d of run %q: %w", o.GetSeq(), o.GetRunId(), failed), err)
}

// Fire acts on a timer that is due.
type Fire func(ctx context.Context, t *tapepb.TimerRecord) error

// FireTimers claims timers that are due and calls fire for each, until ctx ends; it then returns
// the cause. A claim fires a timer once over all processes. If the handler fails, the timer is set
// again, to Loop.Retry from now, unless the error matches [ErrPermanent].
//
// The protocol's claim of a timer is final. Up to Loop.Claim timers are lost
//
//   - if the reply to their claim is lost (the connection fails, or Options.RequestTimeout passes), or
//     the server gets no reply from its store;
//   - if the process dies before their handlers have returned or, after an error, before SetTimer is
//     applied.
//
// SetTimer is repeated until it is applied, without regard for Options.RetryTimeout. Meanwhile the
// timer counts towards Loop.Claim. A timer whose handler has failed is lost only
//
//   - if the server refuses SetTimer for a reason that is not transient, for example because the run
//     was purged or the client's token has expired;
//   - if ctx has ended, and SetTimer is not applied within 30 s after that.
//
// Loop.OnError receives the error of the handler when it fails, and the error of SetTimer once the
// loop gives up.
//
// The protocol has no conditional SetTimer. If the run cancels its timer or sets it again before
// SetTimer is applied, the timer is nevertheless set again as it was claimed. While replies are lost,
// a timer whose handler has failed may be set again, and fire, more than once.
func (c *Client) FireTimers(ctx context.Context, l Loop, fire Fire) error {
	l = l.withDefaults()
	var pages pages
	return l.run(ctx, func(ctx context.Context, limit int) ([]job, error) {
		var listed *tapepb.ListDueTimersResponse
		err := pages.look(func(token string) (n int, next string, err error) {
			listed, err = c.claiming.ListDueTimers(ctx, &tapepb.ListDueTimersRequest{Limit: int64(limit), Claim: true, PageToken: token})
			return len(listed.GetTimers()), listed.GetNextPageToken(), err
		})
		var jobs []job
		for _, t := range listed.GetTimers() {
			// A timer that was set again meanwhile has the same id and must be handled too.
			key := fmt.Sprintf("%s\x00%s\x00%d", t.GetRunId(), t.GetTimerId(), claims.Add(1))
			jobs = append(jobs, job{key, func(ctx context.Context) (done bool, err error) { return true, c.fire(ctx, l, t, fire) }})
		}
		return jobs, err
	})
}

// setTimerAfterEnd is 30 s, for which the SetTimer of a failed timer is repeated after the loop's
// context has ended. It is the time that Kubernetes gives a process between SIGTERM and SIGKILL.
const setTimerAfterEnd = 30 * time.Second

func (c *Client) fire(ctx context.Context, l Loop, t *tapepb.TimerRecord, fire Fire) error {
	failed := handle(ctx, l, time.Now(), func(ctx context.Context) error { return fire(ctx, proto.CloneOf(t)) })
	if failed == nil {
		return nil
	}
	failed = fmt.Errorf("timer %q of run %q: %w", t.GetTimerId(), t.GetRunId(), failed)
	if errors.Is(failed, ErrPermanent) {
		return failed
	}
	l.OnError(failed) // now: SetTimer may be repeated for a long time
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		pace.Pause(late, setTimerAfterEnd)
		cancel(context.Cause(ctx))
	})()
	// Repeat even if the repeat may be applied again: a timer may fire twice but must not be lost.
	err := c.repeatCall(late, tapepb.Tape_SetTimer_FullMethodName, &tapepb.SetTimerRequest{
		RunId: t.GetRunId(), TimerId: t.GetTimerId(), FireAtMs: l.retryAt(), Kind: t.GetKind(), PayloadJson: t.GetPayloadJson(),
	}, &tapepb.TimerRecord{}, true, sleeping)
	if err != nil {
		return fmt.Errorf("timer %q of run %q may be lost: %w", t.GetTimerId(), t.GetRunId(), err)
	}
	return nil
}
