package tapeclient_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A driver whose calls are harmed once, each in turn, leaves the journal of a driver whose calls are
// not: nothing is half done, and nothing twice.
func TestOneLostCall(t *testing.T) {
	for _, harm := range []fault{notSent, replyLost, silent} {
		for _, method := range []string{"BeginRun", "GetDecision", "RecordDecision", "BeginEffect", "CompleteEffect", "ResumeRun", "EndRun", "AwaitSignal"} {
			t.Run(method+[]string{"", " is not sent", " loses its reply", " gets no answer"}[harm], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := serve(t, required())
					c, net := f.client("driver:1")
					net.once(method, harm)
					count, id := 0, ""
					err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
						id = run.ID()
						if _, err := run.Decide(ctx, 0, think); err != nil {
							return err
						}
						if _, err := run.Act(ctx, pay(), paid(&count)); err != nil {
							return err
						}
						if method == "AwaitSignal" {
							_, err := run.Await(ctx, "g", "")
							return err
						}
						return run.End(ctx, terminal, "")
					})
					end, status := "run", tape.RunTerminal
					if method == "AwaitSignal" {
						if end, status = "gate", tape.RunWaiting; !errors.Is(err, tapeclient.ErrParked) {
							t.Fatalf("Begin = %v, want ErrParked", err)
						}
					} else if err != nil {
						t.Fatalf("Begin = %v", err)
					}
					if want := []string{"run", "decision", "effect", "effect", end}; count != 1 || !slices.Equal(f.kinds(id), want) {
						t.Errorf("%d calls, journal %v, want 1 call and %v", count, f.kinds(id), want)
					}
					if r := f.run(id); tape.RunStatus(r.Status) != status || r.Holder.Token != 0 {
						t.Errorf("run %+v, want status %d and no lease", r, status)
					}
				})
			})
		}
	}
}

// A write without an identity is repeated only if it was surely not applied.
func TestWritesWithoutIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			net.once("ChargeBudget", replyLost)
			_, err := run.Tape().ChargeBudget(ctx, &tapepb.ChargeBudgetRequest{RunId: run.ID(), Tokens: 7})
			if runstore.OutcomeOf(err) != runstore.Unknown || net.count("ChargeBudget") != 1 {
				t.Errorf("ChargeBudget = %v in %d calls, want an unknown outcome and 1 call", err, net.count("ChargeBudget"))
			}
			b, err := run.Tape().AdmitBudget(ctx, &tapepb.AdmitBudgetRequest{RunId: run.ID()})
			if err != nil || b.GetBudget().GetTokensSpent() != 7 {
				t.Errorf("budget %v, %v, want 7 tokens spent", b, err)
			}
			return nil
		})
	})
}

// Once an attempt's outcome is unknown, the refusal of a repeat does not make it known.
func TestAnUnknownOutcomeStaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
			net.set(func(method string, n int) fault {
				if method == "RecordDecision" && n == 1 {
					takeOver(t, f)
					return notSent
				}
				return none
			})
			_, err := run.Tape().RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: run.ID()})
			if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, runstore.ErrFenced) || ctx.Err() == nil {
				t.Errorf("RecordDecision = %v, want an unknown outcome, ErrFenced, and an ended context", err)
			}
			return err
		})
		if !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("Begin = %v, want ErrFenced", err)
		}
		net.always("GetRun", silent)
		_, err = c.Tape().GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
		if runstore.OutcomeOf(err) != runstore.Unknown || net.count("GetRun") != 3 { // 10 s each, 30 s in all
			t.Errorf("GetRun = %v after %d attempts, want an unknown outcome after 3", err, net.count("GetRun"))
		}
	})
}

// A driver that was fenced out before it ended its run does not take the end of its successor for its
// own.
func TestEndOfAnotherDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
			net.set(func(method string, n int) fault {
				if method == "EndRun" && n == 1 {
					other, _ := f.client("driver:2")
					begin(t, other, func(ctx context.Context, run *tapeclient.Run) error { return run.End(ctx, terminal, "") })
					return notSent
				}
				return none
			})
			return run.End(ctx, terminal, "")
		})
		if !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("Begin = %v, want ErrFenced", err)
		}
	})
}

// failing is a store whose commits fail.
type failing struct {
	runstore.RunStore
	err func() error
}

func (s failing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if err := s.err(); err != nil {
		return runstore.Committed{}, err
	}
	return s.RunStore.Commit(ctx, b)
}

// Every kind of error arrives as that kind, with its outcome.
func TestKindsOfErrors(t *testing.T) {
	for _, kind := range append(runstore.Kinds(), tape.Kinds()...) {
		t.Run(kind.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fails error
				store := failing{memory.New(nil).Open(), func() error { return fails }}
				c, _ := connect(t, serveStore(t, store, tapeserver.Options{}), &tapeclient.Options{Owner: "driver:1"})
				begun, err := c.Tape().BeginRun(t.Context(), beginRequest())
				if err != nil {
					t.Fatal(err)
				}
				fails = &runstore.OpError{Op: "commit", Err: kind}
				want := runstore.OutcomeOf(fails)
				if slices.Contains(tape.Kinds(), kind) {
					want = runstore.NotApplied
				}
				_, err = c.Tape().RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: begun.GetRunId()})
				var detail *tapeclient.Error
				if !errors.Is(err, kind) || !errors.As(err, &detail) || detail.Reason == "" || detail.Op != "RecordDecision" {
					t.Errorf("RecordDecision = %v, want an Error of kind %v with its reason", err, kind)
				}
				if got := runstore.OutcomeOf(err); got != want {
					t.Errorf("outcome %v, want %v", got, want)
				}
				_, err = c.Tape().BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: begun.GetRunId(), ToolName: "pay"})
				if err == nil || runstore.OutcomeOf(err) != want {
					t.Errorf("BeginEffect = %v with outcome %v, want %v", err, runstore.OutcomeOf(err), want)
				}
			})
		})
	}
}

// A call whose context has ended before it was made is not applied, and its error matches that of the
// context and its cause.
func TestEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, tapeserver.Options{})
		c, net := f.client("driver:1")
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		net.set(func(string, int) fault { cancel(why); return silent })
		_, err := c.Tape().SetBudget(ctx, &tapepb.SetBudgetRequest{RunId: "r"})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || runstore.OutcomeOf(err) != runstore.Unknown {
			t.Errorf("a call in flight = %v, want the context's error, its cause, and an unknown outcome", err)
		}
		_, err = c.Tape().SetBudget(ctx, &tapepb.SetBudgetRequest{RunId: "r"})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("a call that was not made = %v, want the context's error, its cause, and not applied", err)
		}
	})
}

// While a call that ends the grant is repeated because it was not applied, heartbeats keep the lease.
func TestHeartbeatsWhileEnding(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, run *tapeclient.Run) error{
		"EndRun": func(ctx context.Context, run *tapeclient.Run) error { return run.End(ctx, terminal, "") },
		"AwaitSignal": func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Await(ctx, "g", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fails error
				store := failing{memory.New(nil).Open(), func() error { return fails }}
				c, net := connect(t, serveStore(t, store, required()), &tapeclient.Options{Owner: "driver:1"})
				err := c.Begin(t.Context(), beginRequest(), func(ctx context.Context, run *tapeclient.Run) error {
					time.Sleep(9 * time.Second) // just before a heartbeat
					fails = &runstore.OpError{Op: "commit", Err: runstore.ErrUnavailable}
					if err := end(ctx, run); !errors.Is(err, runstore.ErrUnavailable) {
						t.Errorf("%s = %v, want ErrUnavailable", name, err)
					}
					if ctx.Err() != nil || net.count("ResumeRun") < 3 {
						t.Errorf("%d heartbeats in 39 s, cause %v, want 3 and the lease", net.count("ResumeRun"), context.Cause(ctx))
					}
					fails = nil
					return end(ctx, run)
				})
				if err != nil && !errors.Is(err, tapeclient.ErrParked) || errors.Is(err, lease.ErrLost) {
					t.Errorf("Begin = %v, want no lost lease", err)
				}
			})
		})
	}
}

// A request that the server refuses for its size is not repeated; whether it was applied stays unknown,
// as gRPC answers the same to a reply that is too large.
func TestTooLargeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		large := strings.Repeat("x", 5<<20)
		req := beginRequest()
		req.Scopes = []string{large}
		err := c.Begin(t.Context(), req, nil)
		if status.Code(err) != codes.ResourceExhausted || net.count("BeginRun") != 1 || runstore.OutcomeOf(err) != runstore.Unknown {
			t.Errorf("Begin = %v after %d requests, want RESOURCE_EXHAUSTED, unknown, after 1", err, net.count("BeginRun"))
		}
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: run.ID(), RequestJson: large})
			if status.Code(err) != codes.ResourceExhausted || net.count("RecordDecision") != 1 || runstore.OutcomeOf(err) != runstore.Unknown {
				t.Errorf("RecordDecision = %v after %d requests, want RESOURCE_EXHAUSTED, unknown, after 1", err, net.count("RecordDecision"))
			}
			return nil
		})
	})
}
