package command

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// mebibytes is how much memory a server under attack may take.
const mebibytes = 512

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// What clients nobody invited can do keeps a server under 512 MiB, and its other clients are served meanwhile.
// The limits themselves are tested in package tapeserver; this measures what they come to.
func TestServeStaysSmall(t *testing.T) {
	if !effort.Full() {
		t.Skip("a measurement, several minutes of CPU: make test-full")
	}
	if _, err := os.ReadFile("/proc/self/status"); err != nil {
		t.Skip("the memory of a process is read from /proc")
	}
	exe := commandWithoutRace(t)
	for _, c := range []struct {
		name string
		load func(t *testing.T, p *process)
	}{
		{"40 connections with large headers", largeHeaders},
		{"200 streams that nobody reads", unreadStreams},
		{"200 replies that nobody reads", unreadReplies},
		{"200 requests of 4 MB", largeRequests},
		{"100 lists at once", lists},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startProgram(t, exe, "--store", "sqlite:"+filepath.Join(t.TempDir(), "tape.db"), "--healthz-listen", "")
			other := p.client(t)
			run, err := other.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "other"})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			served, slowest := 0, time.Duration(0)
			var group sync.WaitGroup
			group.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(10 * time.Millisecond):
					}
					began := time.Now()
					if _, err := other.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run.GetRunId()}); err != nil {
						t.Errorf("another client: %v", err)
						return
					}
					served++
					slowest = max(slowest, time.Since(began))
				}
			})
			c.load(t, p)
			close(done)
			group.Wait()
			text, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/status")
			if err != nil {
				t.Fatal(err)
			}
			kilobytes, _ := strconv.Atoi(highWater.FindStringSubmatch(string(text))[1])
			t.Logf("at most %d MiB; %d calls of another client, the slowest %v", kilobytes>>10, served, slowest)
			if kilobytes>>10 >= mebibytes {
				t.Errorf("the server took %d MiB, want less than %d", kilobytes>>10, mebibytes)
			}
		})
	}
}

// commandWithoutRace builds the command without the race detector, whose shadow memory is
// several times what the server takes.
func commandWithoutRace(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "tapestore")
	build := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-buildvcs=false", "-o", exe, "../../cmd/tapestore")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return exe
}

// dial returns a connection of its own.
func (p *process) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// largeHeaders sends header blocks without an end, for as long as the server takes them.
func largeHeaders(t *testing.T, p *process) {
	var group sync.WaitGroup
	for range 40 {
		group.Go(func() {
			c, err := net.Dial("tcp", p.grpc)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = c.Write([]byte(http2.ClientPreface))
			f := http2.NewFramer(c, c)
			_ = f.WriteSettings()
			// Literal fields without indexing: a name of one byte and a value of 127.
			fields := []byte(strings.Repeat("\x00\x01x\x7f\x00"+strings.Repeat("y", 127), 120))
			if f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields}) != nil {
				return
			}
			for range 1 << 10 { // 16 MB
				if f.WriteContinuation(1, false, fields) != nil {
					return
				}
			}
		})
	}
	group.Wait()
}

// request begins calls whose replies are not read, but for the first message of a stream. It
// returns when the server has sent the headers of each reply and the first message of each
// stream, or has refused the call.
func request(t *testing.T, p *process, method string, streams bool, calls int, request proto.Message) {
	conn := p.dial(t)
	var group sync.WaitGroup
	for range calls {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: streams}, "/tape.v1.Tape/"+method)
		if err == nil {
			err = stream.SendMsg(request)
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			if streams {
				_ = stream.RecvMsg(new(tapepb.JournalEntry)) // an error is a refusal
			} else {
				_, _ = stream.Header()
			}
		})
	}
	group.Wait()
}

// journal makes a run with a journal of 12 MB and an effect of 4 MB.
func journal(t *testing.T, p *process) (run string) {
	c := p.client(t)
	r, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "large"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(16) {
		if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
			RunId: r.GetRunId(), DecisionIndex: i, Rationale: strings.Repeat("x", 800_000),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{
		RunId: r.GetRunId(), CustomKey: "K", RequestJson: strings.Repeat("x", 1_950_000),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{
		RunId: r.GetRunId(), IdempotencyKey: "K", Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, ResponseJson: strings.Repeat("x", 1_950_000),
	}); err != nil {
		t.Fatal(err)
	}
	return r.GetRunId()
}

func unreadStreams(t *testing.T, p *process) {
	request(t, p, "SubscribeRun", true, 200, &tapepb.SubscribeRunRequest{RunId: journal(t, p)})
}

func unreadReplies(t *testing.T, p *process) {
	request(t, p, "GetEffect", false, 200, &tapepb.GetEffectRequest{RunId: journal(t, p), IdempotencyKey: "K"})
}

// settle makes calls at once and checks that each is served or refused because of a limit.
func settle(t *testing.T, calls int, call func(i int) error) {
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			if err := call(i); err != nil && status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.InvalidArgument {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	group.Wait()
}

func largeRequests(t *testing.T, p *process) {
	c := p.client(t)
	run := journal(t, p)
	text := strings.Repeat("x", 3_900_000)
	settle(t, 200, func(i int) error {
		_, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: int64(100 + i), RequestJson: text})
		return err
	})
}

func lists(t *testing.T, p *process) {
	c := p.client(t)
	run := journal(t, p)
	for i := range 6 {
		if _, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{
			RunId: run, CustomKey: strconv.Itoa(i), RequestJson: strings.Repeat("x", 900_000),
		}); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, 100, func(int) error {
		_, err := c.ListPendingEffects(t.Context(), &tapepb.ListPendingEffectsRequest{IncludePending: true})
		return err
	})
}
