package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// plan is the content of a decision: the steps to do.
type plan struct {
	Steps []step `json:"steps"`
	// Last reports that the run ends after these steps.
	Last bool `json:"last,omitempty"`
}

// think stands for a model: each call returns a different answer. So a decision must be recorded
// before a driver acts on it, and the next driver reads it back.
func think(index int64) plan {
	about := func(cents int64) int64 { return cents + rand.Int64N(cents/10) }
	switch index {
	case 0:
		return plan{Steps: []step{{"wire_sweep", about(1_200_000_00)}}}
	case 1:
		return plan{Steps: []step{{"hedge_sell", about(400_000_00)}, {"hedge_buy", about(370_000_00)}}}
	default:
		return plan{Steps: []step{{"post_ledger", about(1_000_000_00)}}, Last: true}
	}
}

// beginRequest returns the request that begins the workers' run.
func beginRequest() *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{AppName: "treasury", UserId: "acme", SessionId: "main-account", InvocationId: "daily-cash"}
}

// worker drives the run. It has no state: the journal has the decisions and outcomes so far.
type worker struct {
	bank           *bankClient
	pause          string // wait for a line of input before acting on this tool
	tryStaleWrites bool   // after the lease is lost, try every write
	stdin          <-chan string
}

// runWorker drives one run to its end, or until the lease is lost.
func runWorker(args []string) int {
	w := &worker{}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	name := flags.String("name", "worker", "its name; its owner text is this and the process id")
	server := flags.String("server", "", "Tape's address")
	bank := flags.String("bank", "", "the bank's address")
	ttl := flags.Duration("ttl", 2*time.Second, "the lease's TTL")
	recover := flags.Bool("recover", false, "wait for a run to recover")
	flags.StringVar(&w.pause, "pause", "", "wait for a line of input before acting on this tool")
	flags.BoolVar(&w.tryStaleWrites, "stale-writes", false, "when the lease is lost, try all writes before stopping")
	if flags.Parse(args) != nil {
		return exitFailed
	}
	w.bank, w.stdin = newBankClient(*bank), commands()
	c, err := tapeclient.Dial("tape://"+*server, &tapeclient.Options{
		Owner: fmt.Sprintf("%s:%d", *name, os.Getpid()), Lease: lease.Options{TTL: *ttl},
	})
	if err == nil {
		err = w.work(context.Background(), c, *recover)
	}
	var lost *lease.LostError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &lost):
		say("stops by itself: %v", lost)
		return exitLost
	default:
		say("gives up: %v", err)
		return exitFailed
	}
}

// work drives a new run, or the first run that it finds without a driver.
func (w *worker) work(ctx context.Context, c *tapeclient.Client, recover bool) error {
	if !recover {
		return c.Begin(ctx, beginRequest(), w.drive)
	}
	say("looks for a run to recover")
	ctx, done := context.WithCancelCause(ctx)
	var err error
	_ = c.RecoverRuns(ctx, tapeclient.Loop{Tick: 50 * time.Millisecond, Claim: 1, OnError: func(failed error) {
		err = failed
		done(failed)
	}}, func(ctx context.Context, run *tapeclient.Run) error {
		err := w.drive(ctx, run)
		if err == nil {
			done(nil)
		}
		return err
	})
	return err
}

// drive goes through the decisions of the run from its beginning: it reads what is recorded and
// does the rest.
func (w *worker) drive(ctx context.Context, run *tapeclient.Run) error {
	sendReport(report{Kind: holding, Run: run.ID(), Text: fmt.Sprintf("drives the run under token %d", run.Token())})
	for index := int64(0); ; index++ {
		p, err := w.decide(ctx, run, index)
		for _, s := range p.Steps {
			if err == nil {
				err = w.act(ctx, run, index, s)
			}
		}
		if err != nil {
			return err
		}
		if p.Last {
			say("ends the run")
			return run.End(ctx, tapepb.RunStatus_RUN_STATUS_TERMINAL, "")
		}
	}
}

func (w *worker) decide(ctx context.Context, run *tapeclient.Run, index int64) (p plan, err error) {
	did := "reads"
	d, err := run.Decide(ctx, index, func(context.Context) (*tapepb.RecordDecisionRequest, error) {
		did = "records"
		return &tapepb.RecordDecisionRequest{Model: "treasurer-1", ResponseJson: encode(think(index))}, nil
	})
	if err != nil {
		return p, err
	}
	say("%s decision %d: %s", did, index, d.GetResponseJson())
	return p, json.Unmarshal([]byte(d.GetResponseJson()), &p)
}

// act carries out a step once: if the outcome is recorded, the bank is not called.
func (w *worker) act(ctx context.Context, run *tapeclient.Run, decision int64, s step) error {
	begin := &tapepb.BeginEffectRequest{
		RunId: run.ID(), DecisionIndex: decision, ToolName: s.Tool, RequestJson: encode(s),
		Semantics: tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT,
	}
	if s.Tool == w.pause { // pause between the record of the intent and the call
		e, err := run.Tape().BeginEffect(ctx, begin)
		if err != nil {
			return err
		}
		sendReport(report{Kind: waiting, Key: e.GetIdempotencyKey(), Text: "has recorded " + s.Tool + " as pending"})
		<-w.stdin
		defer func() {
			if w.tryStaleWrites {
				tryStaleWrites(context.WithoutCancel(ctx), run, e.GetIdempotencyKey())
			}
		}()
	}
	e, err := run.Act(ctx, begin, func(ctx context.Context, key string) (string, error) {
		say("calls the bank for %s", s.Tool)
		return w.bank.operate(ctx, key, encode(s))
	})
	if err == nil {
		say("has the outcome of %s, on record before: %t", s.Tool, e.Replayed)
	}
	return err
}

// forged is the payload of a fenced worker's writes.
const forged = `{"forged":true}`

// tryStaleWrites tries every write that a driver has, under the fence of its lost grant, and
// reports each result. key is the key of a pending effect.
func tryStaleWrites(ctx context.Context, run *tapeclient.Run, key string) {
	id, tape := run.ID(), run.Tape()
	for _, write := range []struct {
		call string
		do   func() error
	}{
		{"CompleteEffect", func() error {
			_, err := tape.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, ResponseJson: forged})
			return err
		}},
		{"ReconcileEffect", func() error {
			_, err := tape.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: key, ResponseJson: forged})
			return err
		}},
		{"RecordDecision", func() error {
			_, err := tape.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: 99, ResponseJson: forged})
			return err
		}},
		{"BeginEffect", func() error {
			_, err := tape.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: id, DecisionIndex: 99, ToolName: "wire_again"})
			return err
		}},
		{"AwaitSignal", func() error {
			_, err := tape.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: id, GateName: "forged"})
			return err
		}},
		{"ResumeRun", func() error { _, err := tape.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id}); return err }},
		{"EndRun", func() error {
			_, err := tape.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_FAILED})
			return err
		}},
	} {
		got := verdict(write.do())
		sendReport(report{Kind: tried, Key: write.call, Answer: got, Text: fmt.Sprintf("tries %s: %s", write.call, got)})
	}
}

// verdict returns the result of a write: "accepted", or the reason of its refusal and the tokens.
func verdict(err error) string {
	var detail *tapeclient.Error
	switch {
	case err == nil:
		return "accepted"
	case errors.As(err, &detail) && detail.Reason == "FENCED":
		return fmt.Sprintf("FENCED, token %s is out and %s is in", detail.Facts["presented_token"], detail.Facts["current_token"])
	case errors.As(err, &detail) && detail.Reason != "":
		return detail.Reason
	default:
		return err.Error()
	}
}
