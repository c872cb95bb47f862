package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Two recovery workers list the same run. One takes it over and is stopped before its payment; the
// other takes it over in turn and pays. The first wakes up before the payment is on record, when
// nothing but a refusal keeps it from paying again.
//
// All of it are processes that use the public protocol. The workers use package tapeclient, or behave
// as a plugin that knows of no fences and acts unless BeginEffect says PERMISSION_DENIED.
func TestRaceOfRecoveryWorkers(t *testing.T) {
	t.Parallel()
	const fenced, denied = "FailedPrecondition FENCED", "PermissionDenied FENCED"
	for _, c := range []struct {
		mode           string
		expired        bool // --takeover expired
		paused, second string
		beat           bool   // the plugins send heartbeats
		refusal        string // of the paused worker's first write
		calls          int    // of the bank
		evicts         bool   // the paused worker's heartbeat may take the run from the second one
	}{
		{mode: "presented", paused: "driver", second: "driver", refusal: fenced, calls: 1},
		{mode: "required", paused: "driver", second: "driver", refusal: fenced, calls: 1},
		{mode: "connection", paused: "driver", second: "driver", refusal: fenced, calls: 1},
		{mode: "required", expired: true, paused: "driver", second: "driver", refusal: fenced, calls: 1},
		{mode: "required", paused: "plugin", second: "driver", refusal: "PermissionDenied FENCE_REQUIRED", calls: 1},
		{mode: "connection", paused: "plugin", second: "driver", refusal: denied, calls: 1},
		{mode: "connection", paused: "plugin", second: "plugin", refusal: denied, calls: 1},
		{mode: "connection", expired: true, beat: true, paused: "plugin", second: "plugin", refusal: denied, calls: 1},
		{mode: "connection", expired: true, beat: true, paused: "plugin", second: "driver", refusal: denied, calls: 1},
		// A heartbeat that names no fence takes a live lease, unless takeovers wait for its end. No worker
		// pays twice then either, but the run waits for a third worker.
		{mode: "connection", beat: true, evicts: true, paused: "plugin", second: "plugin", refusal: denied, calls: 1},
		// Without fences nothing is refused, and the bank is asked twice. Its idempotency key prevents
		// the second payment.
		{mode: "presented", paused: "plugin", second: "plugin", refusal: "accepted", calls: 2},
	} {
		name := fmt.Sprintf("%s, %s before %s", c.mode, c.paused, c.second)
		if c.expired {
			name += ", takeover expired"
		}
		if c.beat {
			name += ", heartbeats"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, flags := testOptions(t), []string{"--fence", c.mode}
			if c.expired { // the takeover waits for the end of a lease, which the second worker then keeps
				flags = append(flags, "--takeover", "expired")
			} else {
				opts.ttl = time.Minute
			}
			r := newRace(t, opts, flags)
			first, second := r.worker("worker-1", c.paused, c.beat), r.worker("worker-2", c.second, c.beat)
			r.await(first, listed)
			r.await(second, listed)
			r.tell(first)
			r.await(first, taken)
			r.must(freeze(first.cmd.Process))
			r.tell(second)
			r.await(second, taken)
			r.tell(second)
			if got := r.await(second, wrote).Text; got != "accepted" {
				t.Fatalf("the second worker's write was answered %s", got)
			}
			r.await(second, called)
			r.must(thaw(first.cmd.Process))
			r.tell(first)
			if got := r.await(first, wrote).Text; got != c.refusal {
				t.Fatalf("the paused worker's first write was answered %q, want %q", got, c.refusal)
			}
			if c.calls == 2 {
				r.await(first, called)
				r.tell(first)
			}
			_, err := first.wait(r.ctx)
			r.must(err)
			r.tell(second)
			_, err = second.wait(r.ctx)
			r.must(err)
			if got := second.cmd.ProcessState.ExitCode(); got != exitDone {
				t.Errorf("the second worker ended with exit status %d\n%s", got, r.out)
			}
			r.check(c.calls, !c.evicts)
		})
	}
}

// race is what the processes of one race share.
type race struct {
	*testing.T
	ctx context.Context // the test's, with a bound
	*environment
	out *bytes.Buffer
	run string
}

// newRace starts the server and the bank, and leaves a run without a driver.
func newRace(t *testing.T, opts options, flags []string) *race {
	t.Helper()
	out := &bytes.Buffer{}
	s := newEnvironment(t.TempDir(), opts, out)
	ctx, cancel := context.WithTimeout(t.Context(), opts.limit)
	r := &race{T: t, ctx: ctx, environment: s, out: out}
	t.Cleanup(func() {
		cancel()
		s.close()
		if t.Failed() {
			t.Log(out)
		}
	})
	r.must(s.startServer(ctx, flags...))
	r.must(s.startBank(ctx))
	dead := beginRequest()
	dead.LeaseOwner, dead.LeaseTtlMs = "dead:1", 1
	begun, err := s.tape.BeginRun(ctx, dead)
	r.must(err)
	r.run = begun.GetRunId()
	for { // its lease has expired when it is listed
		listed, err := s.tape.ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{})
		if r.must(err); len(listed.GetRuns()) == 1 {
			return r
		}
	}
}

// must ends the test at an error.
func (r *race) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *race) worker(name, kind string, beat bool) *process {
	r.Helper()
	var args []string
	if kind == "plugin" {
		args = append(args, "-plugin")
	}
	if beat {
		args = append(args, "-beat", "100ms")
	}
	p, err := r.startWorker(name, "racer", args...)
	r.must(err)
	return p
}

func (r *race) await(p *process, kind string) report {
	r.Helper()
	got, err := p.await(r.ctx, kind)
	r.must(err)
	return got
}

// tell has a worker go on from the point at which it waits.
func (r *race) tell(p *process) {
	r.Helper()
	r.must(p.proceed())
}

// check looks at what the bank did and, if the second worker kept the run, at what is on record.
func (r *race) check(calls int, kept bool) {
	r.Helper()
	ledger, err := r.bankClient.ledger(r.ctx)
	r.must(err)
	if len(ledger) != 1 || ledger[0].Applied != 1 || ledger[0].Calls != calls || ledger[0].Moved != 100 {
		r.Errorf("the bank's ledger is %+v, want one payment in %d calls", ledger, calls)
	}
	if !kept {
		return
	}
	e, err := r.environment.tape.GetEffect(r.ctx, &tapepb.GetEffectRequest{RunId: r.run, IdempotencyKey: ledger[0].Key})
	r.must(err)
	if e.GetEffect().GetStatus() != tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED {
		r.Errorf("the payment is %v, want it CONFIRMED", e.GetEffect().GetStatus())
	}
	run, err := r.environment.tape.GetRun(r.ctx, &tapepb.GetRunRequest{RunId: r.run})
	r.must(err)
	if run.GetStatus() != tapepb.RunStatus_RUN_STATUS_TERMINAL {
		r.Errorf("the run is %v, want it TERMINAL", run.GetStatus())
	}
}
