package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// racer is a recovery worker: it lists the runs without a driver, takes one over, and makes the
// payment that the run's decision asks for. It waits to be told to go on at every point at which the
// test may stop it.
type racer struct {
	owner string
	ttl   time.Duration
	tape  *tapeclient.Client
	bank  *bankClient
	stdin <-chan string
}

// The kinds of a racer's reports.
const (
	listed = "listed" // it has found the run
	taken  = "taken"  // it has the run's lease, and is about to begin the payment
	called = "called" // the bank has paid, and the outcome is not recorded yet
	wrote  = "wrote"  // what its first write after taken was answered: the Text
)

func runRacer(args []string) int {
	flags := flag.NewFlagSet("racer", flag.ContinueOnError)
	name := flags.String("name", "", "its name")
	server := flags.String("server", "", "Tape's address")
	bank := flags.String("bank", "", "the bank's address")
	ttl := flags.Duration("ttl", 0, "the lease's TTL")
	plugin := flags.Bool("plugin", false, "behave as a plugin that knows of no fences")
	beat := flags.Duration("beat", 0, "the plugin's pause between heartbeats")
	if flags.Parse(args) != nil {
		return exitFailed
	}
	r := &racer{owner: fmt.Sprintf("%s:%d", *name, os.Getpid()), ttl: *ttl, bank: newBankClient(*bank), stdin: commands()}
	var err error
	r.tape, err = tapeclient.Dial("tape://"+*server, &tapeclient.Options{
		Owner: r.owner, Lease: lease.Options{TTL: *ttl, MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second},
	})
	if err == nil && *plugin {
		err = r.plugin(*server, *beat)
	} else if err == nil {
		err = r.driver()
	}
	if err != nil {
		say("ends: %v", err)
		return exitFailed
	}
	return exitDone
}

// wait reports that the racer is at a point, and waits to be told to go on.
func (r *racer) wait(kind string) {
	sendReport(report{Kind: kind})
	<-r.stdin
}

// list finds the run by the public list.
func (r *racer) list(ctx context.Context) (*tapepb.RunState, error) {
	found, err := r.tape.Tape().ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{})
	if err != nil || len(found.GetRuns()) != 1 {
		return nil, fmt.Errorf("ListRunsToRecover = %v, %w", found, err)
	}
	return found.GetRuns()[0], nil
}

// driver is a worker that uses package tapeclient.
func (r *racer) driver() error {
	ctx := context.Background()
	found, err := r.list(ctx)
	if err != nil {
		return err
	}
	r.wait(listed)
	return r.tape.Begin(ctx, again(found), func(ctx context.Context, run *tapeclient.Run) error {
		r.wait(taken)
		// A driver whose lease ran out while it was stopped does not even try. This one does, so that
		// the server's answer is seen.
		_, err := run.Tape().RecordDecision(context.WithoutCancel(ctx), &tapepb.RecordDecisionRequest{RunId: run.ID(), ResponseJson: "{}"})
		sendReport(report{Kind: wrote, Text: answer(err)})
		_, err = run.Act(ctx, payment(), func(ctx context.Context, key string) (string, error) {
			paid, err := r.bank.operate(ctx, key, encode(step{"pay", 100}))
			r.wait(called)
			return paid, err
		})
		if err != nil {
			return err
		}
		return run.End(ctx, tapepb.RunStatus_RUN_STATUS_TERMINAL, "")
	})
}

// plugin is a worker that behaves as Tape's Python plugin. It presents no fence, calls the bank unless
// BeginEffect answers PERMISSION_DENIED, and ignores the errors of CompleteEffect. Its heartbeats go
// over a connection of their own.
func (r *racer) plugin(server string, beat time.Duration) error {
	ctx := context.Background()
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	tape := tapepb.NewTapeClient(conn)
	found, err := r.list(ctx)
	if err != nil {
		return err
	}
	r.wait(listed)
	req := again(found)
	req.LeaseOwner, req.LeaseTtlMs = r.owner, r.ttl.Milliseconds()
	for again := time.Tick(20 * time.Millisecond); ; <-again {
		_, err := tape.BeginRun(ctx, req)
		if err == nil {
			break
		}
		if status.Code(err) != codes.Aborted { // held: with --takeover expired
			return err
		}
	}
	if beat > 0 {
		go func() {
			for range time.Tick(beat) {
				_, err := r.tape.Tape().ResumeRun(ctx, &tapepb.ResumeRunRequest{
					RunId: found.GetRunId(), LeaseOwner: r.owner, LeaseTtlMs: r.ttl.Milliseconds(),
				})
				say("heartbeat: %s", answer(err))
			}
		}()
	}
	r.wait(taken)
	effect := payment()
	effect.RunId = found.GetRunId()
	begun, err := tape.BeginEffect(ctx, effect)
	sendReport(report{Kind: wrote, Text: answer(err)})
	if status.Code(err) == codes.PermissionDenied || begun.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED {
		return nil
	}
	key := begun.GetIdempotencyKey() // empty after a refusal of another status
	paid, err := r.bank.operate(ctx, key, encode(step{"pay", 100}))
	if err != nil {
		return err
	}
	r.wait(called)
	_, _ = tape.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
		RunId: found.GetRunId(), IdempotencyKey: key, ResponseJson: paid, Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED,
	})
	_, _ = tape.EndRun(ctx, &tapepb.EndRunRequest{RunId: found.GetRunId(), Status: tapepb.RunStatus_RUN_STATUS_TERMINAL})
	return nil
}

// again returns the request that resumes a run by its identity.
func again(r *tapepb.RunState) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: r.GetAppName(), UserId: r.GetUserId(), SessionId: r.GetSessionId(), InvocationId: r.GetInvocationId(),
	}
}

func payment() *tapepb.BeginEffectRequest {
	return &tapepb.BeginEffectRequest{ToolName: "pay", RequestJson: "{}", Semantics: tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT}
}

// answer returns what a write was answered: "accepted", or the status and the reason of a refusal.
func answer(err error) string {
	if err == nil {
		return "accepted"
	}
	reason := ""
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			reason = info.GetReason()
		}
	}
	return fmt.Sprintf("%v %s", status.Code(err), reason)
}
