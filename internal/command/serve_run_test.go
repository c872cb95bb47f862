package command

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// output is what a server logs.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan string
}

func newOutput() *output { return &output{lines: make(chan string, 100)} }

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines <- string(line)
	return o.text.Write(line)
}

// line waits for a line that matches and returns the first group.
func (o *output) line(t *testing.T, pattern string) string {
	t.Helper()
	for re := regexp.MustCompile(pattern); ; {
		select {
		case line := <-o.lines:
			if m := re.FindStringSubmatch(line); m != nil {
				return m[len(m)-1]
			}
		case <-time.After(hang):
			t.Fatalf("no line that matches %q in\n%s", pattern, o.text.String())
		}
	}
}

// frozen is a store that does not close, and whose engine does not even let it open where the address says so.
type frozen struct{ runstore.RunStore }

func (frozen) Close() error { select {} }

// openLate is closed to let a store of the scheme late open.
var openLate chan struct{}

func init() {
	runstore.Register("frozen", func(context.Context, runstore.URL) (runstore.RunStore, error) {
		return frozen{memory.New(nil).Open()}, nil
	})
	runstore.Register("late", func(ctx context.Context, _ runstore.URL) (runstore.RunStore, error) {
		select {
		case <-openLate:
			return memory.New(nil).Open(), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	runstore.Register("unopened", func(context.Context, runstore.URL) (runstore.RunStore, error) { select {} })
}

// config returns a configuration whose drain takes 2 s if the store does not close, and whose limit on
// handshakes does not pass.
func config(store string) serveConfig {
	return serveConfig{
		listen: "127.0.0.1:0", probes: "127.0.0.1:0", store: store, drain: 2 * time.Second,
		limits: tapeserver.Limits{HandshakeTimeout: hang},
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(res.Body)
	return strings.TrimSpace(res.Status + " " + string(body))
}

// The probes answer while the store is being opened, and a stop waits for no store, open or not.
func TestServeStopsWhateverItsStoreDoes(t *testing.T) {
	// Not parallel: serve sets the process's logger.
	defer slog.SetDefault(slog.Default())
	for store, want := range map[string]string{"frozen:": "200 OK ok", "unopened:": "503 Service Unavailable starting"} {
		t.Run(store, func(t *testing.T) {
			out := newOutput()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- serve(ctx, config(store), out) }()
			probes := "http://" + out.line(t, `msg=probes http=(\S+)`)
			if store == "frozen:" {
				out.line(t, "msg=serving")
			}
			if got := get(t, probes+"/healthz"); got != "200 OK ok" {
				t.Errorf("/healthz: %s", got)
			}
			if got := get(t, probes+"/readyz"); got != want {
				t.Errorf("/readyz: %s, want %s", got, want)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("serve = %v", err)
			}
			if text := strings.TrimSpace(out.text.String()); !strings.Contains(text[strings.LastIndex(text, "\n")+1:], "msg=stopped") {
				t.Errorf("the last line is not stopped:\n%s", text)
			}
		})
	}
}

// TestServeAnswersGRPCWhileItStarts checks that gRPC's health service answers, and other
// calls are refused, before the store is open, and that the same clients are served after it.
func TestServeAnswersGRPCWhileItStarts(t *testing.T) {
	// Not parallel: serve sets the process's logger.
	defer slog.SetDefault(slog.Default())
	out := newOutput()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	openLate = make(chan struct{})
	cfg := config("late:")
	cfg.logLevel = slog.LevelDebug
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, out) }()
	conn, err := grpc.NewClient(out.line(t, `msg=starting grpc=(\S+)`), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	health, tape := healthpb.NewHealthClient(conn), tapepb.NewTapeClient(conn)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", "tape.v1.Tape"} {
			res, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
			if err != nil || res.GetStatus() != want {
				t.Errorf("Check %q = %v, %v, want %v", service, res, err, want)
			}
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := tape.BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "a"}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "starting") {
		t.Errorf("BeginRun = %v, want UNAVAILABLE because the server is starting", err)
	}
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := watch.Recv(); err != nil || res.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("Watch = %v, %v, want NOT_SERVING", res, err)
	}
	close(openLate)
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Watch ends with %v, want UNAVAILABLE, so that the client asks again", err)
	}
	out.line(t, "msg=serving")
	for ctx.Err() == nil { // until the connection is replaced
		_, err = tape.BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "a"}, grpc.WaitForReady(true))
		if status.Code(err) != codes.Unavailable {
			break
		}
	}
	if err != nil {
		t.Errorf("BeginRun = %v, once the store is open", err)
	}
	check(healthpb.HealthCheckResponse_SERVING)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("serve = %v", err)
	}
}

// One format for all lines, and one warning for an address that others can reach.
func TestServeLogsJSONAndWarnsOfOpenAddresses(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	out := newOutput()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := config("memory:")
	cfg.listen, cfg.logJSON, cfg.security.insecure = "0.0.0.0:0", true, true
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, out) }()
	out.line(t, `"msg":"serving"`)
	slog.Warn("a store's own line")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("serve = %v", err)
	}
	text, warnings, own := out.text.String(), 0, 0
	for line := range strings.Lines(text) {
		var event struct{ Msg, Level string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if strings.Contains(event.Msg, "no TLS") {
			warnings++
		}
		if event.Msg == "a store's own line" {
			own++
		}
	}
	if warnings != 1 || own != 1 {
		t.Errorf("%d warnings and %d lines of the store, want 1 and 1:\n%s", warnings, own, text)
	}
}

func TestHealthAndReflectionAreServed(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "memory", "--healthz-listen", "")
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, service := range []string{"", "tape.v1.Tape"} {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("Check %q = %v, %v", service, res, err)
		}
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "tape.v1.Tape"},
	}); err != nil {
		t.Fatal(err)
	}
	if res, err := stream.Recv(); err != nil || len(res.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection = %v, %v", res, err)
	}
}
