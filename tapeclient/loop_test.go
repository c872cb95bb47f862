package tapeclient_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// tally counts what handlers did, by name.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *tally) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[name]++
	return c.seen[name]
}

// want ends the test if the counts differ.
func (c *tally) want(t *testing.T, names int, each int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) != names {
		t.Errorf("handled %v, want %d", c.seen, names)
	}
	for name, n := range c.seen {
		if n != each {
			t.Errorf("%s was handled %d times, want %d", name, n, each)
		}
	}
}

// loops runs loops until the fake clock has moved by d, and then ends them.
func loops(t *testing.T, d time.Duration, all ...func(ctx context.Context) error) {
	t.Helper()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for _, loop := range all {
		wg.Go(func() {
			if err := loop(ctx); !errors.Is(err, stop) {
				t.Errorf("the loop returned %v, want the cause of its context", err)
			}
		})
	}
	time.Sleep(d)
	cancel(stop)
	wg.Wait()
}

// outbox begins a run with effects for a dispatcher, and returns the run's id.
func outbox(t *testing.T, c *tapeclient.Client, n int, semantics tapepb.EffectSemantics) string {
	t.Helper()
	return abandon(t, c, func(ctx context.Context, run *tapeclient.Run) error {
		for i := range n {
			_, err := run.Tape().BeginEffect(ctx, &tapepb.BeginEffectRequest{
				RunId: run.ID(), ToolName: "pay", CustomKey: fmt.Sprint(i), Connector: "bank", Semantics: semantics, Scope: "pay",
				DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX,
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func effect(t *testing.T, c *tapeclient.Client, id, key string) *tapepb.EffectRecord {
	t.Helper()
	e, err := c.Tape().GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: key})
	if err != nil || !e.GetFound() {
		t.Fatalf("GetEffect(%s) = %v, %v", key, e, err)
	}
	return e.GetEffect()
}

// Two processes recover the same runs: each run is driven by one of them at a time, again after work
// that fails, and not after it has ended.
func TestRecoverRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		dead, _ := f.client("dead")
		const runs = 5
		for i := range runs {
			req := beginRequest()
			req.InvocationId = fmt.Sprint(i)
			if err := dead.Begin(t.Context(), req, func(context.Context, *tapeclient.Run) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		var driving, failed sync.Map
		var drives tally
		work := func(ctx context.Context, run *tapeclient.Run) error {
			if _, twice := driving.LoadOrStore(run.ID(), true); twice {
				t.Errorf("run %s has two drivers", run.ID())
			}
			defer driving.Delete(run.ID())
			time.Sleep(45 * time.Second)
			if drives.add(run.ID()) == 1 {
				return errors.New("a crash")
			}
			return run.End(ctx, terminal, "")
		}
		recover := func(owner string) func(ctx context.Context) error {
			c, _ := f.client(owner)
			return func(ctx context.Context) error {
				return c.RecoverRuns(ctx, tapeclient.Loop{Claim: 3, OnError: func(err error) { failed.Store(err.Error(), true) }}, work)
			}
		}
		loops(t, 10*time.Minute, recover("recovery:1"), recover("recovery:2"))
		drives.want(t, runs, 2)
		failed.Range(func(text, _ any) bool {
			if text != "a crash" {
				t.Errorf("error %s, want that of the work alone", text)
			}
			return true
		})
	})
}

// A recovery whose reply is lost leaves its grant to expire, and the run is recovered after that.
func TestRecoveryThatLosesItsReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		dead, _ := f.client("dead")
		id := abandon(t, dead, nil)
		c, net := f.client("recovery:1")
		net.once("ResumeRun", replyLost)
		var drives tally
		var errs []error
		loops(t, 2*time.Minute, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
			return c.RecoverRuns(ctx, l, func(ctx context.Context, run *tapeclient.Run) error {
				drives.add(run.ID())
				return run.End(ctx, terminal, "")
			})
		})
		drives.want(t, 1, 1)
		if len(errs) != 1 || runstore.OutcomeOf(errs[0]) != runstore.Unknown {
			t.Errorf("errors %v, want one with an unknown outcome", errs)
		}
		if r := f.run(id); r.Token != 3 || tape.RunStatus(r.Status) != tape.RunTerminal {
			t.Errorf("run %+v, want it TERMINAL under token 3", r)
		}
	})
}

// Two dispatchers share an outbox: each effect is called once, no more than Claim at a time by each,
// also where the replies to claims and reports are lost.
func TestDispatchEffects(t *testing.T) {
	for _, lost := range []string{"", "ClaimEffectDispatch", "CompleteEffect", "ListEffectsToDispatch"} {
		t.Run("lost "+lost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				const effects = 12
				id := outbox(t, agent, effects, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
				var calls tally
				dispatcher := func(owner string) func(ctx context.Context) error {
					c, net := f.client(owner)
					net.once(lost, replyLost)
					room := make(chan struct{}, 2)
					return func(ctx context.Context) error {
						return c.DispatchEffects(ctx, tapeclient.Loop{Claim: 2}, "bank", func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
							select {
							case room <- struct{}{}:
								defer func() { <-room }()
							default:
								t.Error("more than 2 effects at a time")
							}
							time.Sleep(100 * time.Millisecond)
							calls.add(e.GetIdempotencyKey())
							return `"done"`, nil
						})
					}
				}
				loops(t, 20*time.Second, dispatcher("outbox:1"), dispatcher("outbox:2"))
				calls.want(t, effects, 1)
				for i := range effects {
					if e := effect(t, agent, id, fmt.Sprint(i)); e.GetStatus() != confirmed || e.GetResponseJson() != `"done"` {
						t.Errorf("effect %d is %v", i, e)
					}
				}
			})
		})
	}
}

// What becomes of an effect whose dispatch fails.
func TestFailedDispatch(t *testing.T) {
	const idempotent, once = tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT
	for name, c := range map[string]struct {
		semantics tapepb.EffectSemantics
		err       error
		calls     int // in 25 s, with a pause of 10 s after a failure
		status    tapepb.EffectStatus
	}{
		"open, idempotent":     {idempotent, errors.New("timeout"), 3, pending},
		"open, not idempotent": {once, errors.New("timeout"), 1, tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN},
		"not sent":             {once, tapeclient.ErrNotSent, 3, pending},
		"refused":              {once, tapeclient.ErrPermanent, 1, failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := outbox(t, agent, 1, c.semantics)
				var calls tally
				loops(t, 25*time.Second, func(ctx context.Context) error {
					return agent.DispatchEffects(ctx, tapeclient.Loop{}, "", func(context.Context, *tapepb.EffectRecord) (string, error) {
						calls.add("call")
						return "", c.err
					})
				})
				calls.want(t, 1, c.calls)
				if e := effect(t, agent, id, "0"); e.GetStatus() != c.status {
					t.Errorf("the effect is %v, want %v", e.GetStatus(), c.status)
				}
			})
		})
	}
}

// A dispatcher that outlives its claim reports too late: the report changes nothing, and is an error of the
// loop. An outcome of which nothing is recorded is one too: the counterparty was called twice.
func TestReportOfALapsedClaim(t *testing.T) {
	for name, outcome := range map[string]error{"failure": errors.New("timeout"), "refusal": tapeclient.ErrPermanent, "success": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
				late, _ := f.client("late")
				next, _ := f.client("next")
				var errs []error
				loops(t, 100*time.Second, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
					return late.DispatchEffects(ctx, l, "", func(ctx context.Context, _ *tapepb.EffectRecord) (string, error) {
						began := time.Now()
						<-ctx.Done()
						if held := time.Since(began); held != 54*time.Second {
							t.Errorf("the handler's context ended after %v, want 54 s, before the claim", held)
						}
						time.Sleep(20 * time.Second) // it does not stop
						return "", outcome
					})
				}, func(ctx context.Context) error {
					time.Sleep(5 * time.Second)
					return next.DispatchEffects(ctx, tapeclient.Loop{}, "", func(context.Context, *tapepb.EffectRecord) (string, error) {
						if outcome != nil {
							time.Sleep(30 * time.Second) // the late report comes before this one
						}
						return `"next"`, nil
					})
				})
				if e := effect(t, agent, id, "0"); e.GetStatus() != confirmed || e.GetResponseJson() != `"next"` || e.GetDispatchAttempts() != 0 {
					t.Errorf("the effect is %v, want the result of the second claim and no failed attempt", e)
				}
				want := map[string]string{"failure": "timeout", "refusal": "", "success": "under claim 1"}[name]
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
					t.Errorf("errors %v, want one that contains %q", errs, want)
				}
			})
		})
	}
}

// A timer fires once for all processes, and again after a handler that failed.
func TestFireTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		abandon(t, agent, func(ctx context.Context, run *tapeclient.Run) error {
			for i := range 20 {
				_, err := run.Tape().SetTimer(ctx, &tapepb.SetTimerRequest{
					RunId: run.ID(), TimerId: fmt.Sprint(i), Kind: "redrive", FireAtMs: time.Now().Add(time.Duration(i) * time.Second).UnixMilli(),
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		var fired, retried tally
		var set sync.Map
		reactor := func(owner string) func(ctx context.Context) error {
			c, _ := f.client(owner)
			return func(ctx context.Context) error {
				return c.FireTimers(ctx, tapeclient.Loop{Claim: 3}, func(_ context.Context, m *tapepb.TimerRecord) error {
					if _, again := set.LoadOrStore(m.GetTimerId(), true); again {
						retried.add(m.GetTimerId())
						return nil
					}
					fired.add(m.GetTimerId())
					switch m.GetTimerId() {
					case "7":
						return errors.New("timeout")
					case "8":
						return tapeclient.ErrPermanent
					}
					return nil
				})
			}
		}
		loops(t, time.Minute, reactor("timers:1"), reactor("timers:2"))
		fired.want(t, 20, 1)
		retried.want(t, 1, 1)
	})
}

// A timer whose handler has failed is not lost with the request, or the reply, that sets it again.
func TestATimerIsSetAgainThroughFaults(t *testing.T) {
	for _, harm := range []fault{notSent, replyLost} {
		synctest.Test(t, func(t *testing.T) {
			f := serve(t, tapeserver.Options{})
			c, net := f.client("timers:1")
			id := abandon(t, c, nil)
			if _, err := c.Tape().SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: id, TimerId: "t", FireAtMs: 1}); err != nil {
				t.Fatal(err)
			}
			net.once("SetTimer", harm)
			fires := 0
			loops(t, time.Minute, func(ctx context.Context) error {
				return c.FireTimers(ctx, tapeclient.Loop{}, func(context.Context, *tapepb.TimerRecord) error {
					if fires++; fires == 1 {
						return errors.New("timeout")
					}
					return nil
				})
			})
			if fires != 2 || net.count("SetTimer") != 2 {
				t.Errorf("fired %d times, set again with %d calls, want 2 and 2", fires, net.count("SetTimer"))
			}
		})
	}
}

// OnError receives every error of the work, also one that says that a run has ended or that a lease is
// held: it is that of another run. A run that another process has taken is no error.
func TestRecoveryReportsErrorsOfTheWork(t *testing.T) {
	for name, answer := range map[string]error{"ended": tapeclient.ErrEnded, "held": runstore.ErrLeaseHeld} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				c, _ := f.client("driver:1")
				abandon(t, c, nil)
				drives, errs := 0, 0
				loops(t, 5*time.Minute, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) {
						if errs++; !errors.Is(err, answer) {
							t.Errorf("OnError(%v), want %v", err, answer)
						}
					}}
					return c.RecoverRuns(ctx, l, func(context.Context, *tapeclient.Run) error {
						drives++
						return fmt.Errorf("the child: %w", answer)
					})
				})
				if drives == 0 || errs != drives {
					t.Errorf("the work has failed %d times, and OnError has received %d errors", drives, errs)
				}
			})
		})
	}
}

// Work that a loop cannot get done makes it look again at every tick, and no sooner.
func TestWorkThatIsNotDone(t *testing.T) {
	for name, answer := range map[string]error{"not known yet": nil, "an error": errors.New("timeout")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, net := f.client("agent")
				outbox(t, agent, 4, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
				time.Sleep(2 * time.Minute) // they are old
				net.set(nil)
				loops(t, 20*time.Second+500*time.Millisecond, func(ctx context.Context) error {
					return agent.ReconcileEffects(ctx, tapeclient.Loop{Claim: 2}, time.Minute, func(context.Context, *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error) {
						return nil, answer
					})
				})
				if looks := net.count("ListPendingEffects"); looks < 20 || looks > 22 {
					t.Errorf("%d looks in 20 s, want one a second", looks)
				}
			})
		})
	}
}

// A loop that finds as much as it can take does not wait for its tick.
func TestABusyLoopDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		outbox(t, agent, 60, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
		var calls tally
		loops(t, time.Second, func(ctx context.Context) error {
			return agent.DispatchEffects(ctx, tapeclient.Loop{Tick: time.Hour, Claim: 4}, "", func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
				calls.add(e.GetIdempotencyKey())
				return "1", nil
			})
		})
		calls.want(t, 60, 1)
	})
}

// A loop reports what fails and goes on.
func TestALoopOutlivesItsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, tapeserver.Options{Fence: tape.FenceRequired})
		agent, _ := f.client("agent")
		id := outbox(t, agent, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
		c, net := f.client("outbox:1")
		began := time.Now()
		net.set(func(string, int) fault {
			if time.Since(began) < 2*tapeclient.DefaultRetryTimeout { // longer than the repeats of one call
				return notSent
			}
			return none
		})
		var errs []error
		loops(t, 5*time.Minute, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
			return c.DispatchEffects(ctx, l, "bank", func(context.Context, *tapepb.EffectRecord) (string, error) { return "1", nil })
		})
		if e := effect(t, agent, id, "0"); e.GetStatus() != confirmed || len(errs) == 0 || runstore.OutcomeOf(errs[0]) != runstore.Unknown {
			t.Errorf("the effect is %v, errors %v; want it CONFIRMED and the errors reported", e.GetStatus(), errs)
		}
	})
}
