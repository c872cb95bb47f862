package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// worker drives a run. It keeps nothing: what was decided and done so far is in
// the run's journal.
type worker struct {
	owner   string
	ttl     time.Duration
	recover bool   // take over a run that lost its driver, don't begin one
	pause   string // wait to be told before acting on this tool
	tape    tapepb.TapeClient
	bank    *teller
	stdin   <-chan string
	hold    *hold
	// known is the last seq of the run when it took the lease.
	known int64
	// pausedKey is that of the effect that it waited to act on.
	pausedKey string
}

// runWorker drives one run to its end, or until the worker is fenced.
func runWorker(args []string) int {
	w := &worker{stdin: commands()}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.StringVar(&sender, "name", "worker", "its name; its owner text is this and the process id")
	server := flags.String("server", "", "Tape's address")
	bankAddress := flags.String("bank", "", "the bank's address")
	flags.DurationVar(&w.ttl, "ttl", 2*time.Second, "the lease's TTL")
	flags.BoolVar(&w.recover, "recover", false, "wait for a run to recover")
	flags.StringVar(&w.pause, "pause", "", "wait for a line of input before acting on this tool")
	insist := flags.Bool("insist", false, "when fenced, try all writes before stopping")
	if flags.Parse(args) != nil {
		return exitFailed
	}
	w.owner = fmt.Sprintf("%s:%d", sender, os.Getpid())
	conn, err := dial(*server)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	defer func() { _ = conn.Close() }()
	w.tape = tapepb.NewTapeClient(conn)
	w.bank = newTeller(*bankAddress)
	err = w.work(context.Background())
	switch {
	case err == nil:
		return exitDone
	case !isFenced(err):
		say("gives up: %v", err)
		return exitFailed
	}
	say("is told that it is fenced: token %s is out, token %s is in", presented(err), current(err))
	if *insist {
		w.insist(context.Background())
	}
	say("stops by itself, exit status %d", exitFenced)
	return exitFenced
}

// work gets a run and drives it to its end under a lease that is kept alive.
func (w *worker) work(ctx context.Context) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	if w.recover {
		if err := w.awaitRun(ctx); err != nil {
			return err
		}
	}
	if err := w.begin(ctx, lose); err != nil {
		return err
	}
	beating, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); w.hold.keep(beating) }()
	err := w.drive(ctx)
	// The end of the run releases its lease. A heartbeat after that would be refused
	// as any zombie's is, so there must be none.
	stop()
	<-done
	if err == nil {
		err = w.end(ctx)
	}
	// That it was fenced is the news, whichever call noticed the end.
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

// awaitRun polls until the run is one to recover. That is the store's judgement, by
// its own clock: BeginRun would take the run from a living driver too.
func (w *worker) awaitRun(ctx context.Context) error {
	say("asks for runs to recover, again and again")
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		listed, err := w.tape.ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{})
		if err != nil {
			return callError("ListRunsToRecover", err)
		}
		for _, r := range listed.GetRuns() {
			if r.GetAppName() == appName && r.GetInvocationId() == invocationID {
				say("finds the run: the lease of %s is over", r.GetLeaseOwner())
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// begin begins the run, or takes it over, and holds its lease.
func (w *worker) begin(ctx context.Context, lose context.CancelCauseFunc) error {
	sent := time.Now()
	r, err := w.tape.BeginRun(ctx, beginRequest(w.owner, w.ttl, nil))
	if err != nil {
		return callError("BeginRun", err)
	}
	if r.GetGrant() == nil {
		return fmt.Errorf("the run is %v and grants no lease", r.GetStatus())
	}
	w.hold = &hold{
		tape: w.tape, run: r.GetRunId(), ttl: w.ttl, fence: fenceOf(r.GetGrant()), lose: lose,
		until: sent.Add(trustFor(w.ttl)),
	}
	w.known = r.GetNextSeq() // 0 for a run that has just begun
	verb := "begins"
	if r.GetResumed() {
		verb = "takes over"
	}
	tell(report{Kind: holding, Run: r.GetRunId(), Text: fmt.Sprintf(
		"%s the run under token %d, for %v from now", verb, r.GetGrant().GetToken(), w.ttl)})
	return nil
}

func beginRequest(owner string, ttl time.Duration, f *tapepb.Fence) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: appName, UserId: userID, SessionId: sessionID, InvocationId: invocationID,
		LeaseOwner: owner, LeaseTtlMs: ttl.Milliseconds(), Fence: f,
	}
}

// drive goes through the decisions of the run from its beginning: what is in the journal is read,
// what is not is done.
func (w *worker) drive(ctx context.Context) error {
	for index := int64(0); ; index++ {
		p, err := w.decide(ctx, index)
		if err != nil {
			return err
		}
		for _, s := range p.Steps {
			if err := w.act(ctx, index, s); err != nil {
				return err
			}
		}
		if p.Last {
			return nil
		}
	}
}

// end ends the run.
func (w *worker) end(ctx context.Context) error {
	if _, err := w.tape.EndRun(ctx, &tapepb.EndRunRequest{
		RunId: w.hold.run, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL, Fence: w.hold.fence,
	}); err != nil {
		return w.hold.refused("EndRun", err)
	}
	say("ends the run: TERMINAL")
	return nil
}

// decide returns the decision of that index: the recorded one, if there is one.
func (w *worker) decide(ctx context.Context, index int64) (plan, error) {
	known, err := w.tape.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: w.hold.run, DecisionIndex: index})
	if err != nil {
		return plan{}, callError("GetDecision", err)
	}
	if known.GetFound() {
		p, err := decodePlan(known.GetDecision().GetResponseJson())
		if err == nil {
			say("reads decision %d: %v", index, p)
		}
		return p, err
	}
	thought, rationale := think(index)
	recorded, err := w.tape.RecordDecision(ctx, &tapepb.RecordDecisionRequest{
		RunId: w.hold.run, DecisionIndex: index, Model: model, PolicyVersion: policyVersion,
		ResponseJson: encode(thought), Rationale: rationale, Fence: w.hold.fence,
	})
	if err != nil {
		return plan{}, w.hold.refused("RecordDecision", err)
	}
	p, err := decodePlan(recorded.GetResponseJson())
	if err == nil {
		say("records decision %d: %v", index, p)
	}
	return p, err
}
