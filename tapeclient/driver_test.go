package tapeclient_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	confirmed = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
	failed    = tapepb.EffectStatus_EFFECT_STATUS_FAILED
	pending   = tapepb.EffectStatus_EFFECT_STATUS_PENDING
	terminal  = tapepb.RunStatus_RUN_STATUS_TERMINAL
)

func think(context.Context) (*tapepb.RecordDecisionRequest, error) {
	return &tapepb.RecordDecisionRequest{Model: "m", ResponseJson: `{"pay":100}`}, nil
}

func pay() *tapepb.BeginEffectRequest {
	return &tapepb.BeginEffectRequest{ToolName: "pay", RequestJson: "{}", Semantics: tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT}
}

// paid is a call that counts itself.
func paid(count *int) tapeclient.Call {
	return func(context.Context, string) (string, error) {
		*count++
		return `"paid"`, nil
	}
}

// A driver decides, acts and ends its run under one grant that its heartbeats keep, on a server that
// refuses writes without a fence.
func TestDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		count, id := 0, ""
		err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
			id = run.ID()
			if _, resumed := run.Resumed(); resumed || run.Token() != 1 {
				t.Errorf("resumed %t, token %d, want a new run under token 1", resumed, run.Token())
			}
			d, err := run.Decide(ctx, 0, think)
			if err != nil || d.GetResponseJson() != `{"pay":100}` {
				t.Errorf("Decide = %v, %v", d, err)
			}
			time.Sleep(95 * time.Second) // three leases long
			e, err := run.Act(ctx, pay(), paid(&count))
			if err != nil || e.Status != confirmed || e.Response != `"paid"` || e.Replayed {
				t.Errorf("Act = %+v, %v", e, err)
			}
			e, err = run.Act(ctx, pay(), paid(&count))
			if err != nil || e.Status != confirmed || !e.Replayed || count != 1 {
				t.Errorf("Act again = %+v, %v, %d calls, want the recorded outcome and 1 call", e, err, count)
			}
			if err := run.End(ctx, terminal, `{}`); err != nil {
				return err
			}
			time.Sleep(time.Minute) // no heartbeat after the end
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		r := f.run(id)
		if tape.RunStatus(r.Status) != tape.RunTerminal || r.Token != 1 || r.Holder.Token != 0 {
			t.Errorf("run %+v, want it TERMINAL and free under token 1", r)
		}
		// The first comes after 5 to 10 s, the others every 8 to 10 s.
		if beats := net.count("ResumeRun"); beats < 9 || beats > 12 {
			t.Errorf("%d heartbeats, want 9 to 12 in 95 s", beats)
		}
		if got, want := f.kinds(id), []string{"run", "decision", "effect", "effect", "run"}; !slices.Equal(got, want) {
			t.Errorf("journal %v, want %v", got, want)
		}
		if err := c.Begin(t.Context(), beginRequest(), nil); !errors.Is(err, tapeclient.ErrEnded) {
			t.Errorf("Begin of an ended run = %v, want ErrEnded", err)
		}
		if err := c.Resume(t.Context(), id, nil); !errors.Is(err, tapeclient.ErrEnded) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("Resume of an ended run = %v, want ErrEnded", err)
		}
	})
}

// takeOver has another client begin the run, as a process that was started anew does.
func takeOver(t *testing.T, f *fixture) {
	t.Helper()
	other, _ := f.client("driver:2")
	abandon(t, other, nil)
}

// A driver that was fenced out is cancelled by its first write or heartbeat, whichever is first, and
// its writes leave the run as it was.
func TestFencedDriver(t *testing.T) {
	for name, refused := range map[string]func(ctx context.Context, run *tapeclient.Run) error{
		"by a write": func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: run.ID()})
			return err
		},
		"by a claimant's write": func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().SetTimer(ctx, &tapepb.SetTimerRequest{RunId: run.ID(), TimerId: "t"})
			return err
		},
		"by an event of a session": func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().AppendEvent(ctx, &tapepb.AppendEventRequest{AppName: "a", UserId: "u", SessionId: "s", Event: &tapepb.EventRecord{Id: "e"}})
			return err
		},
		"by BeginEffect": func(ctx context.Context, run *tapeclient.Run) error {
			count := 0
			_, err := run.Act(ctx, pay(), paid(&count))
			if !errors.Is(err, tapeclient.ErrDenied) || count != 0 {
				return errors.New("acted after a refusal")
			}
			return err
		},
		"by a heartbeat": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, tapeserver.Options{})
				c, _ := f.client("driver:1")
				id := ""
				err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
					id = run.ID()
					takeOver(t, f)
					if began := time.Now(); refused != nil {
						err := refused(ctx, run)
						if !errors.Is(err, runstore.ErrFenced) || runstore.OutcomeOf(err) != runstore.NotApplied {
							t.Errorf("the write = %v, want ErrFenced and not applied", err)
						}
						if time.Since(began) != 0 || ctx.Err() == nil {
							t.Errorf("the context goes on after a refused write")
						}
					}
					<-ctx.Done()
					var lost *lease.LostError
					if !errors.As(context.Cause(ctx), &lost) || lost.Token != 1 || !errors.Is(lost, runstore.ErrFenced) {
						t.Errorf("cause %v, want a LostError of token 1", context.Cause(ctx))
					}
					return nil // swallowed
				})
				if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrFenced) {
					t.Errorf("Begin = %v, want ErrLost and ErrFenced", err)
				}
				if r := f.run(id); r.Token != 2 || len(f.kinds(id)) != 1 {
					t.Errorf("run %+v with journal %v, want token 2 and no more than its begin", r, f.kinds(id))
				}
			})
		})
	}
}

// The fence is presented by requests that name the run, or are to a session, and present none, and the caller's request
// stays as it is.
func TestWhichRequestsPresentTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, tapeserver.Options{})
		c, _ := f.client("driver:1")
		other := beginRequest()
		other.InvocationId = "2"
		begun, err := c.Tape().BeginRun(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			if _, err := run.Tape().SetTimer(ctx, &tapepb.SetTimerRequest{RunId: begun.GetRunId(), TimerId: "t"}); err != nil {
				t.Errorf("a write to another run = %v, want no fence and no refusal", err)
			}
			if _, err := run.Tape().CreateSession(ctx, &tapepb.CreateSessionRequest{AppName: "a", UserId: "u", SessionId: "s"}); err != nil {
				t.Errorf("a write to a session = %v", err)
			}
			own := &tapepb.SetTimerRequest{RunId: run.ID(), TimerId: "t"}
			if _, err := run.Tape().SetTimer(ctx, own); err != nil || own.GetFence() != nil {
				t.Errorf("a write to the run = %v, and the caller's request has fence %v", err, own.GetFence())
			}
			own.Fence = &tapepb.Fence{Owner: "x", Token: run.Token(), GrantId: "x"}
			_, err := run.Tape().SetTimer(ctx, own)
			if !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("a write with a fence of its own = %v, want ErrFenced", err)
			}
			return nil
		})
	})
}

// Without an answer to its heartbeats a driver stops before its lease expires on the store clock, and
// does not act from then on.
func TestSilentServerEndsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		count := 0
		err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
			began := time.Now()
			net.always("ResumeRun", silent)
			<-ctx.Done()
			if after := time.Since(began); after != 27*time.Second { // TTL less a tenth
				t.Errorf("cancelled after %v, want 27 s", after)
			}
			if r := f.run(run.ID()); !time.Now().Before(r.ExpiresAt) {
				t.Errorf("cancelled at %v, not before the expiry at %v", time.Now(), r.ExpiresAt)
			}
			_, err := run.Act(context.WithoutCancel(ctx), pay(), paid(&count)) // which ignores its cancellation
			_, late := run.Act(ctx, pay(), paid(&count))
			if late == nil || runstore.OutcomeOf(late) != runstore.NotApplied {
				t.Errorf("Act with an ended context = %v, want an error, and not applied", late)
			}
			return err
		})
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, lease.ErrExpired) {
			t.Errorf("Begin = %v, want ErrLost by expiry", err)
		}
		if count != 0 {
			t.Errorf("%d calls without trust, want none", count)
		}
	})
}

// A request that leaves a live lease alone waits for its end; Resume does not wait.
func TestWaitingForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		first, _ := f.client("driver:1")
		second, _ := f.client("driver:2")
		id := abandon(t, first, nil)
		began := time.Now()
		var held *runstore.LeaseHeldError
		err := second.Resume(t.Context(), id, nil)
		if !errors.As(err, &held) || held.Holder.Owner != "driver:1" || held.Remaining != 30*time.Second {
			t.Errorf("Resume = %v, want LeaseHeldError of driver:1 for 30 s", err)
		}
		if err := first.Resume(t.Context(), id, nil); !errors.Is(err, runstore.ErrLeaseHeld) {
			t.Errorf("Resume by the holder = %v, want ErrLeaseHeld", err)
		}
		req := beginRequest()
		req.WaitForLease = true
		err = second.Begin(t.Context(), req, func(_ context.Context, run *tapeclient.Run) error {
			if seq, resumed := run.Resumed(); !resumed || seq != 1 || run.Token() != 2 || run.ID() != id {
				t.Errorf("resumed %t at %d under %d, want true, 1, 2", resumed, seq, run.Token())
			}
			return nil
		})
		if waited := time.Since(began); err != nil || waited < 30*time.Second || waited > 31*time.Second {
			t.Errorf("Begin = %v after %v, want it right after the lease's 30 s", err, waited)
		}
	})
}

// Resume renews no lease that it does not take: a run whose driver died is driven after its TTL, also
// by a process of the same name that asks again and again.
func TestResumeUnderTheNameOfADeadDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		dead, _ := f.client("worker")
		id := abandon(t, dead, nil)
		anew, _ := f.client("worker")
		refused := 0
		for range 4 {
			err := anew.Resume(t.Context(), id, func(context.Context, *tapeclient.Run) error { return nil })
			if err == nil {
				if refused == 0 {
					t.Error("Resume has taken a live lease")
				}
				return
			}
			if !errors.Is(err, runstore.ErrLeaseHeld) {
				t.Fatal(err)
			}
			refused++
			time.Sleep(10 * time.Second)
		}
		t.Errorf("after 40 s no driver has the run, and its lease of 30 s lasts until %v", f.run(id).ExpiresAt)
	})
}

// A run that is being unwound has not ended: Resume by the process that holds its live lease says that
// the lease is held.
func TestResumeOfACompensatingRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("driver:1")
		id := abandon(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			return run.End(ctx, tapepb.RunStatus_RUN_STATUS_COMPENSATING, "")
		})
		err := c.Resume(t.Context(), id, nil)
		if errors.Is(err, tapeclient.ErrEnded) || !errors.Is(err, runstore.ErrLeaseHeld) {
			t.Errorf("Resume = %v, want ErrLeaseHeld and not ErrEnded", err)
		}
	})
}

// A gate parks a run without a lost lease; the signal is found by the recovery loop.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		id := ""
		work := func(ctx context.Context, run *tapeclient.Run) error {
			id = run.ID()
			answer, err := run.Await(ctx, "approval", `{}`)
			if err != nil {
				time.Sleep(time.Minute) // no heartbeat after the park
				return err
			}
			if answer != `"yes"` {
				t.Errorf("resolution %s", answer)
			}
			return run.End(ctx, terminal, "")
		}
		err := c.Begin(t.Context(), beginRequest(), work)
		if !errors.Is(err, tapeclient.ErrParked) || errors.Is(err, lease.ErrLost) || net.count("ResumeRun") != 0 {
			t.Fatalf("Begin = %v after %d heartbeats, want ErrParked alone", err, net.count("ResumeRun"))
		}
		_, err = c.Tape().SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: id, GateName: "approval", ResolutionJson: `"yes"`})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		done := errors.New("done")
		err = c.RecoverRuns(ctx, tapeclient.Loop{}, func(ctx context.Context, run *tapeclient.Run) error {
			defer cancel(done)
			return work(ctx, run)
		})
		if !errors.Is(err, done) || tape.RunStatus(f.run(id).Status) != tape.RunTerminal {
			t.Errorf("RecoverRuns = %v, run %+v, want it TERMINAL", err, f.run(id))
		}
	})
}

// A server that grants no leases cannot fence a driver: nothing is driven.
func TestServerWithoutGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, tapeserver.Options{})
		c, net := f.client("driver:1")
		net.bare.Store(true)
		err := c.Begin(t.Context(), beginRequest(), nil)
		if !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("Begin = %v, want ErrUnsupported", err)
		}
		time.Sleep(time.Minute)
		listed, err := c.Tape().ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{})
		if err != nil || len(listed.GetRuns()) != 1 {
			t.Fatalf("to recover: %v, %v", listed, err)
		}
		if err := c.Resume(t.Context(), listed.GetRuns()[0].GetRunId(), nil); !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("Resume = %v, want ErrUnsupported", err)
		}
		net.bare.Store(false)
		time.Sleep(time.Minute)
		err = c.Begin(t.Context(), beginRequest(), func(ctx context.Context, _ *tapeclient.Run) error {
			net.bare.Store(true) // from the first heartbeat on
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("Begin = %v, want ErrLost and ErrFenced", err)
		}
	})
}

// The outcome of a call: confirmed, failed for good, or open.
func TestOutcomesOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("driver:1")
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			act := func(tool string, call tapeclient.Call) (tapeclient.Effect, error) {
				req := pay()
				req.ToolName = tool
				return run.Act(ctx, req, call)
			}
			count, timeout := 0, errors.New("no answer")
			e, err := act("open", func(context.Context, string) (string, error) { return "", timeout })
			if !errors.Is(err, timeout) || e.Status != pending {
				t.Errorf("an open call = %+v, %v, want PENDING and its error", e, err)
			}
			if e, err = act("open", paid(&count)); err != nil || e.Status != confirmed || count != 1 {
				t.Errorf("its repeat = %+v, %v", e, err)
			}
			e, err = act("refused", func(context.Context, string) (string, error) { return "", tapeclient.ErrPermanent })
			if err != nil || e.Status != failed || e.Error != `{"error":"refused for good"}` {
				t.Errorf("a refused call = %+v, %v, want FAILED", e, err)
			}
			if e, err = act("refused", paid(&count)); err != nil || e.Status != failed || count != 1 {
				t.Errorf("its repeat = %+v, %v, %d calls", e, err, count)
			}
			req := pay()
			req.ToolName, req.Connector, req.DispatchMode = "outbox", "bank", tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX
			if e, err = run.Act(ctx, req, paid(&count)); err != nil || e.Status != pending || count != 1 {
				t.Errorf("an effect of the outbox = %+v, %v, %d calls", e, err, count)
			}
			_, err = run.Tape().RecordDispatchAttempt(ctx, &tapepb.RecordDispatchAttemptRequest{RunId: run.ID(), IdempotencyKey: e.Key})
			if err != nil {
				t.Error(err)
			}
			if _, err = run.Act(ctx, req, paid(&count)); !errors.Is(err, tapeclient.ErrUnsettled) || count != 1 {
				t.Errorf("an UNKNOWN effect = %v, %d calls, want ErrUnsettled", err, count)
			}
			req = pay()
			req.ToolName, req.Scope = "scoped", "sell"
			_, err = run.Act(ctx, req, paid(&count))
			if !errors.Is(err, tapeclient.ErrDenied) || !errors.Is(err, tape.ErrScope) || count != 1 || ctx.Err() != nil {
				t.Errorf("an effect beyond the scopes = %v, %d calls, want ErrDenied and ErrScope", err, count)
			}
			return nil
		})
	})
}
