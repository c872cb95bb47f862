package tapeclient_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const unknown = tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN

// A dispatcher calls the counterparty, and no report of it reaches the server while its claim lasts, as if
// it had been killed. The next dispatcher repeats the call unless the effect is NON_IDEMPOTENT; it leaves such
// an effect to a reconciler, and says so.
func TestDispatchAfterALapsedClaim(t *testing.T) {
	for semantics, want := range map[tapepb.EffectSemantics]struct {
		calls  int
		status tapepb.EffectStatus
	}{
		tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT:     {2, confirmed},
		tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT: {1, unknown},
		tapepb.EffectSemantics_EFFECT_SEMANTICS_OBSERVE_ONLY:   {2, confirmed},
	} {
		t.Run(semantics.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := outbox(t, agent, 1, semantics)
				killed, net := f.client("killed")
				net.always("CompleteEffect", notSent)
				next, _ := f.client("next")
				var calls tally
				call := func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
					calls.add(e.GetIdempotencyKey())
					return `"done"`, nil
				}
				loops(t, 500*time.Millisecond, func(ctx context.Context) error {
					return killed.DispatchEffects(ctx, tapeclient.Loop{Tick: time.Hour}, "", call)
				})
				var errs []error
				loops(t, 2*time.Minute, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
					return next.DispatchEffects(ctx, l, "", call)
				})
				calls.want(t, 1, want.calls)
				if e := effect(t, agent, id, "0"); e.GetStatus() != want.status {
					t.Errorf("the effect is %v, want %v", e.GetStatus(), want.status)
				}
				reported := len(errs) == 1 && errors.Is(errs[0], tapeclient.ErrUnsettled)
				if want.status == unknown && !reported || want.status != unknown && len(errs) != 0 {
					t.Errorf("errors %v, want ErrUnsettled once if the effect is UNKNOWN", errs)
				}
			})
		})
	}
}

// A dispatcher is killed under its claim. A person checks the counterparty and sends the effect back once
// with ReconcileEffect to PENDING: the next dispatcher calls.
func TestDispatchAfterALapsedClaimWasReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
		claim, err := agent.Tape().ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{
			RunId: id, IdempotencyKey: "0", Claimer: "killed", LeaseTtlMs: 1000,
		})
		if err != nil || !claim.GetAcquired() {
			t.Fatalf("the claim that is to lapse: %v, %v", claim, err)
		}
		time.Sleep(time.Second)
		if _, err := agent.Tape().ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "0", ResolvedStatus: pending}); err != nil {
			t.Fatal(err)
		}
		next, _ := f.client("next")
		var calls tally
		loops(t, 10*time.Second, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { t.Error(err) }}
			return next.DispatchEffects(ctx, l, "", func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
				calls.add(e.GetIdempotencyKey())
				return `"done"`, nil
			})
		})
		calls.want(t, 1, 1)
		if e := effect(t, agent, id, "0"); e.GetStatus() != confirmed {
			t.Errorf("the effect is %v, want it CONFIRMED", e.GetStatus())
		}
	})
}

// A dispatcher that lists an effect, and whose claim is delayed until another claim of it has lapsed,
// does not see that claim in the list.
func TestDispatchAfterAClaimSinceTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
		killed, _ := f.client("killed")
		c, net := f.client("outbox:1")
		net.set(func(method string, n int) fault {
			if method == "ClaimEffectDispatch" && n == 1 {
				claim, err := killed.Tape().ClaimEffectDispatch(context.Background(), &tapepb.ClaimEffectDispatchRequest{
					RunId: id, IdempotencyKey: "0", Claimer: "killed", LeaseTtlMs: 1,
				})
				if err != nil || !claim.GetAcquired() {
					t.Errorf("the claim that is to lapse: %v, %v", claim, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
			return none
		})
		var errs []error
		loops(t, 10*time.Second, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
			return c.DispatchEffects(ctx, l, "", func(context.Context, *tapepb.EffectRecord) (string, error) {
				t.Error("called the counterparty after the claim of another dispatcher has lapsed")
				return "1", nil
			})
		})
		if e := effect(t, agent, id, "0"); e.GetStatus() != unknown || len(errs) != 1 || !errors.Is(errs[0], tapeclient.ErrUnsettled) {
			t.Errorf("the effect is %v, errors %v, want it UNKNOWN and ErrUnsettled once", e.GetStatus(), errs)
		}
	})
}

// A claim that a report has ended is not a lapsed one: the effect is dispatched once a reconciler has set it
// to PENDING, also if the server has no generations.
func TestDispatchAfterAReportedClaim(t *testing.T) {
	for name, bare := range map[string]bool{"generations": false, "no generations": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
				_, err := agent.Tape().ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "0", Claimer: "other"})
				if err == nil {
					_, err = agent.Tape().RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "0", ClaimGeneration: 1})
				}
				if err == nil {
					_, err = agent.Tape().ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "0", ResolvedStatus: pending})
				}
				if err != nil {
					t.Fatal(err)
				}
				c, net := f.client("outbox:1")
				net.bare.Store(bare)
				loops(t, 10*time.Second, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { t.Errorf("OnError(%v)", err) }}
					return c.DispatchEffects(ctx, l, "", func(context.Context, *tapepb.EffectRecord) (string, error) { return "1", nil })
				})
				if e := effect(t, agent, id, "0"); e.GetStatus() != confirmed || e.GetDispatchClaimGeneration() != 2 {
					t.Errorf("the effect is %v, want it CONFIRMED under its second claim", e)
				}
			})
		})
	}
}

// timer begins a run with a timer that is due.
func timer(t *testing.T, c *tapeclient.Client) {
	t.Helper()
	id := abandon(t, c, nil)
	if _, err := c.Tape().SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: id, TimerId: "t", FireAtMs: 1}); err != nil {
		t.Fatal(err)
	}
}

// unfired returns the number of timers that were not fired.
func unfired(t *testing.T, c *tapeclient.Client) int {
	t.Helper()
	listed, err := c.Tape().ListDueTimers(t.Context(), &tapepb.ListDueTimersRequest{NowMs: time.Now().Add(time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	return len(listed.GetTimers())
}

// A timer whose handler fails in an outage is set again after the outage, however long that is.
func TestTimersOutlastAnOutage(t *testing.T) {
	for name, harm := range map[string]fault{"refused": notSent, "no answer": silent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, tapeserver.Options{})
				c, net := f.client("timers:1")
				timer(t, c)
				ends := time.Now().Add(5 * time.Minute) // of the outage: ten times RetryTimeout
				net.set(func(method string, _ int) fault {
					if method == "SetTimer" && time.Now().Before(ends) {
						return harm
					}
					return none
				})
				fires := 0
				var errs []error
				loops(t, 6*time.Minute, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
					return c.FireTimers(ctx, l, func(context.Context, *tapepb.TimerRecord) error {
						if fires++; fires == 1 {
							return errors.New("timeout")
						}
						return nil
					})
				})
				if fires != 2 || len(errs) != 1 {
					t.Errorf("fired %d times, errors %v, want 2 times and the handler's error", fires, errs)
				}
			})
		})
	}
}

// A loop that is to end in an outage repeats SetTimer for 30 s more, and reports a timer that it could not
// set again.
func TestTimersInAnOutageAtTheEnd(t *testing.T) {
	for name, outage := range map[string]time.Duration{"short": 80 * time.Second, "long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, tapeserver.Options{})
				agent, _ := f.client("agent")
				timer(t, agent)
				c, net := f.client("timers:1")
				began := time.Now()
				net.set(func(method string, _ int) fault {
					if method == "SetTimer" && time.Since(began) < outage {
						return notSent
					}
					return none
				})
				timeout := errors.New("timeout")
				var errs []error
				loops(t, time.Minute, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
					return c.FireTimers(ctx, l, func(context.Context, *tapepb.TimerRecord) error { return timeout })
				})
				took, left := time.Since(began), unfired(t, agent)
				if len(errs) == 0 || !errors.Is(errs[0], timeout) {
					t.Fatalf("errors %v, want the handler's first", errs)
				}
				if name == "short" && (took >= 90*time.Second || left != 1 || len(errs) != 1) {
					t.Errorf("ended after %v with %d timers, errors %v, want the timer set within 30 s after the end", took, left, errs)
				}
				if name == "long" && (took != 90*time.Second || left != 0 || len(errs) != 2 || !strings.Contains(errs[1].Error(), "may be lost")) {
					t.Errorf("ended after %v with %d timers, errors %v, want the report of a lost timer 30 s after the end", took, left, errs)
				}
			})
		})
	}
}

// lateReply is a connection on which the server applies the calls of a method, and a context ends
// before the reply arrives.
type lateReply struct {
	*network
	method string
	end    context.CancelCauseFunc
}

func (c *lateReply) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if path.Base(method) != c.method {
		return c.network.Invoke(ctx, method, args, reply, opts...)
	}
	err := c.network.Invoke(context.WithoutCancel(ctx), method, args, reply, opts...)
	c.end(errEnd)
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

var errEnd = errors.New("end")

// Work that is claimed while the loop's context ends is given back: a timer is set again, and the claim of an
// effect ends with a report, so that the next dispatcher need not assume a call.
func TestClaimAsTheLoopEnds(t *testing.T) {
	ending := func(t *testing.T, f *fixture, method string) (context.Context, *tapeclient.Client) {
		ctx, cancel := context.WithCancelCause(t.Context())
		_, net := f.client("ends")
		c, err := tapeclient.New(&lateReply{net, method, cancel}, &tapeclient.Options{Owner: "ends"})
		if err != nil {
			t.Fatal(err)
		}
		return ctx, c
	}
	t.Run("timer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := serve(t, tapeserver.Options{})
			agent, _ := f.client("agent")
			timer(t, agent)
			ctx, c := ending(t, f, "ListDueTimers")
			err := c.FireTimers(ctx, tapeclient.Loop{}, func(context.Context, *tapepb.TimerRecord) error {
				t.Error("fired a timer after the end")
				return nil
			})
			if left := unfired(t, agent); !errors.Is(err, errEnd) || left != 1 {
				t.Errorf("FireTimers = %v, and %d timers are left, want the cause and 1", err, left)
			}
		})
	})
	t.Run("effect", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := serve(t, required())
			agent, _ := f.client("agent")
			id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
			ctx, c := ending(t, f, "ClaimEffectDispatch")
			err := c.DispatchEffects(ctx, tapeclient.Loop{}, "", func(context.Context, *tapepb.EffectRecord) (string, error) {
				t.Error("called the counterparty after the end")
				return "1", nil
			})
			if e := effect(t, agent, id, "0"); !errors.Is(err, errEnd) || e.GetStatus() != pending || e.GetDispatchClaimedBy() != "" || e.GetDispatchClaimGeneration() != 1 {
				t.Errorf("DispatchEffects = %v, and the effect is %v, want the cause, and its only claim ended", err, e)
			}
		})
	})
}
