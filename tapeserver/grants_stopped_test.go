package tapeserver_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// process is a client's process, which can be stopped (SIGSTOP): then it reads and writes nothing, and its
// connections stay open.
type process struct {
	mu      sync.Mutex
	stopped chan struct{} // nil while it runs
}

func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = make(chan struct{})
}

func (p *process) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.stopped)
	p.stopped = nil
}

func (p *process) wait() {
	p.mu.Lock()
	c := p.stopped
	p.mu.Unlock()
	if c != nil {
		<-c
	}
}

// stoppable is a connection of a process.
type stoppable struct {
	net.Conn
	p *process
}

func (c stoppable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.p.wait()
	return n, err
}

func (c stoppable) Write(b []byte) (int, error) {
	c.p.wait()
	return c.Conn.Write(b)
}

// connect returns a client of the process with its own connection in memory, which ends with the test.
func (p *process) connect(t *testing.T, lis *bufconn.Listener) tapepb.TapeClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := lis.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			return stoppable{c, p}, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tapepb.NewTapeClient(conn)
}

// TestAStoppedDriverIsFenced checks that a driver's process which is stopped for longer than its lease keeps its
// connection and the grant on it: another process takes the run over, the first one wakes up, and what it writes is
// refused, also what needs no driver's authority on a connection without a grant.
func TestAStoppedDriverIsFenced(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ctx context.Context, c tapepb.TapeClient, id string) error{
		"EndRun(CANCELLED)": func(ctx context.Context, c tapepb.TapeClient, id string) error {
			_, err := c.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED})
			return err
		},
		"AppendEvent": func(ctx context.Context, c tapepb.TapeClient, _ string) error {
			req := beginRequest("i")
			_, err := c.AppendEvent(ctx, &tapepb.AppendEventRequest{
				AppName: req.AppName, UserId: req.UserId, SessionId: req.SessionId,
				Event: &tapepb.EventRecord{Id: "e", InvocationId: req.InvocationId, ContentJson: `"paid"`},
			})
			return err
		},
		"ResumeRun": func(ctx context.Context, c tapepb.TapeClient, id string) error {
			_, err := c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 60_000})
			return err
		},
		"WriteValue": func(ctx context.Context, c tapepb.TapeClient, _ string) error {
			_, err := c.WriteValue(ctx, &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: "1", IfVersion: -1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lis := inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Fence: tape.FenceConnection, Logger: quietly}, 1<<20)
				var p process
				driver, next := p.connect(t, lis), connectMemory(t, lis)
				id := beginAs(t, driver, "A")
				p.stop()
				time.Sleep(10 * time.Minute)
				beginAs(t, next, "B")
				p.wake()
				synctest.Wait()
				err := write(t.Context(), driver, id)
				if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Aborted {
					t.Errorf("%s of the driver that was taken over = %v, want FENCED or LEASE_HELD; the run is %v",
						name, err, getRun(t, next, id).GetStatus())
				}
				if !acts(t.Context(), next, id, "k") {
					t.Errorf("after %s of the driver that was taken over, its successor may not act", name)
				}
			})
		})
	}
}
