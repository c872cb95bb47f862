package tapeclient_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A driver begins a run, records its decision, has one payment made, and ends the run. Run again after
// a crash at any point, it reads what is on record and makes the same payment under the same key.
func ExampleClient_Begin() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error, 1)
	server := tapeserver.New(memory.New(nil).Open(), &tapeserver.Options{Logger: slog.New(slog.DiscardHandler)})
	go func() { served <- server.Serve(ctx, lis) }()

	client, err := tapeclient.Dial("tape://"+lis.Addr().String(), &tapeclient.Options{Owner: "agent-a"})
	if err != nil {
		fmt.Println(err)
		return
	}
	invocation := &tapepb.BeginRunRequest{AppName: "treasury", UserId: "acme", SessionId: "main", InvocationId: "17"}
	err = client.Begin(ctx, invocation, func(ctx context.Context, run *tapeclient.Run) error {
		decision, err := run.Decide(ctx, 0, func(context.Context) (*tapepb.RecordDecisionRequest, error) {
			return &tapepb.RecordDecisionRequest{Model: "treasurer-1", ResponseJson: `{"pay":100}`}, nil
		})
		if err != nil {
			return err
		}
		payment := &tapepb.BeginEffectRequest{
			ToolName: "pay", RequestJson: decision.GetResponseJson(), Semantics: tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT,
		}
		effect, err := run.Act(ctx, payment, func(_ context.Context, idempotencyKey string) (string, error) {
			return `"BANK-0001"`, nil // the bank is called here, with the key
		})
		if err != nil {
			return err
		}
		fmt.Println(effect.Status, effect.Response)
		return run.End(ctx, tapepb.RunStatus_RUN_STATUS_TERMINAL, "")
	})
	fmt.Println("error:", err)
	fmt.Println(client.Close())
	stop()
	fmt.Println(<-served)
	// Output:
	// EFFECT_STATUS_CONFIRMED "BANK-0001"
	// error: <nil>
	// <nil>
	// <nil>
}
