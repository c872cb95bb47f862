package command

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/telemetry"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/certs"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// family is a metric as /metrics shows it.
type family struct {
	kind   string
	labels map[string]bool // without le
}

var (
	typeForm   = regexp.MustCompile(`^# TYPE (\w+) (\w+)$`)
	sampleForm = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? \S+$`)
	labelForm  = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

// scrape returns the text of /metrics.
func scrape(t *testing.T, address string) string {
	t.Helper()
	res, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("/metrics = %d, %v", res.StatusCode, err)
	}
	return string(body)
}

// families returns the metrics in the text of a scrape.
func families(text string) map[string]*family {
	all := map[string]*family{}
	var last *family
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := typeForm.FindStringSubmatch(line); m != nil {
			last = &family{kind: m[2], labels: map[string]bool{}}
			all[m[1]] = last
		} else if m := sampleForm.FindStringSubmatch(line); m != nil && !strings.HasPrefix(line, "#") {
			for _, label := range labelForm.FindAllStringSubmatch(m[2], -1) {
				if label[1] != "le" {
					last.labels[label[1]] = true
				}
			}
		}
	}
	return all
}

// traffic makes a server, and a program beside it, show every metric that there is.
func traffic(t *testing.T, measures *serveTelemetry) {
	t.Helper()
	engine := memory.New(nil)
	store := measures.wrap(engine.Open(), "memory")
	t.Cleanup(func() { _ = store.Close() })
	ca := certtest.New(t, "ca")
	cert, key := ca.Server(t, "127.0.0.1").Write(t, t.TempDir())
	tls, err := certs.Load(certs.Files{Cert: cert, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := tapeserver.New(store, measures.add(&tapeserver.Options{
		Logger: measures.log, TLS: tls, Limits: tapeserver.Limits{HandshakeTimeout: hang},
	}))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(ca.Pool(), "")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := tapepb.NewTapeClient(conn)

	// A subscriber of the feed, and a reaction whose shard the matcher holds until it ends.
	events, err := c.SubscribeEvents(ctx, &tapepb.SubscribeEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RegisterReaction(ctx, &tapepb.Reaction{ReactionId: "r", SubjectPattern: "a", NumShards: 1}); err != nil {
		t.Fatal(err)
	}
	await := func(what, series string) {
		t.Helper()
		bound, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		for !strings.Contains(scrape(t, measures.address), series) {
			if bound.Err() != nil {
				t.Fatal(what)
			}
			time.Sleep(10 * time.Millisecond) // between two looks
		}
	}
	await("the matcher holds the shard", `tapestore_server_matcher_shards{state="held"} 1`)
	if _, err := c.DeregisterReaction(ctx, &tapepb.DeregisterReactionRequest{ReactionId: "r"}); err != nil {
		t.Fatal(err)
	}
	await("the matcher has released the shard", `tapestore_lease_hold_duration_seconds_count{end="returned",reactor="matcher"} 1`)

	// A takeover, and a write of the former driver.
	begun, err := c.BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "a", LeaseOwner: "old", LeaseTtlMs: 1000})
	if err != nil {
		t.Fatal(err)
	}
	engine.Advance(2 * time.Second)
	if err := telemetry.NewSampler(store, "memory", measures.options()).Sample(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: begun.GetRunId(), LeaseOwner: "new", LeaseTtlMs: 60000}); err != nil {
		t.Fatal(err)
	}
	grant := begun.GetGrant()
	_, err = c.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: begun.GetRunId(), ResponseJson: "{}", Fence: &tapepb.Fence{Owner: grant.GetOwner(), Token: grant.GetToken(), GrantId: grant.GetGrantId()}})
	if status.Code(err) == codes.OK {
		t.Fatal("a write under the old fence was applied")
	}
	if _, err := events.Recv(); err != nil {
		t.Fatal(err)
	}
	await("the feed's lag", "tapestore_feed_lag_seconds_count")
	ended := make(chan struct{})
	retaining, stop := context.WithCancel(ctx)
	t.Cleanup(func() {
		stop()
		<-ended
	})
	go func() {
		defer close(ended)
		_ = retain.Daily(retaining, store, retain.DailyOptions{Retry: time.Nanosecond, MeterProvider: measures.meters, Logger: measures.log},
			func(context.Context) (retain.Summary, error) { return retain.Summary{}, nil }) // it ends with its context
	}()
	await("a retention pass", `tapestore_retention_passes_total{result="ok"} 1`)
	handoff(t, store, measures)
}

// handoff hands a lease off, as a program does that holds leases itself.
func handoff(t *testing.T, store runstore.RunStore, measures *serveTelemetry) {
	t.Helper()
	ctx := t.Context()
	if _, err := store.CreateRun(ctx, runstore.RunSpec{ID: "handed"}); err != nil {
		t.Fatal(err)
	}
	keeper, err := lease.New(store, &lease.Options{Handoff: lease.Gap, MeterProvider: measures.meters})
	if err != nil {
		t.Fatal(err)
	}
	request := func(owner runstore.Owner) runstore.AcquireRequest {
		return runstore.AcquireRequest{Run: "handed", LeaseSpec: runstore.LeaseSpec{Owner: owner, Reactor: "program"}}
	}
	held, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- keeper.Do(ctx, request("a"), func(ctx context.Context, _ *lease.Held) error {
			close(held)
			<-ctx.Done()
			return nil
		})
	}()
	<-held
	granted, err := keeper.RequestHandoff(ctx, request("b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Hold(ctx, granted, func(context.Context, *lease.Held) error { return nil }); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// documented are the metrics of docs/observability.md.
func documented(t *testing.T) map[string]*family {
	t.Helper()
	page, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*family{}
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:tapestore|rpc)_\\w+)` \\| (\\w+) \\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		f := &family{kind: m[2], labels: map[string]bool{}}
		for _, label := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(m[3], -1) {
			f.labels[label[1]] = true
		}
		all[m[1]] = f
	}
	return all
}

// TestMetricsAreWhatTheDocumentationSays compares what /metrics shows with the page, the alert rules
// and the dashboard.
func TestMetricsAreWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	measures, err := startTelemetry(t.Context(), "127.0.0.1:0", hang, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { measures.stop(context.Background()) })
	traffic(t, measures)
	text := scrape(t, measures.address)
	shown, known := families(text), documented(t)
	for name, f := range shown {
		if !strings.HasPrefix(name, "tapestore_") && !strings.HasPrefix(name, "rpc_") {
			continue
		}
		if d := known[name]; d == nil {
			t.Errorf("%s is not documented", name)
		} else if d.kind != f.kind || !maps.Equal(d.labels, f.labels) {
			t.Errorf("%s is a %s with the labels %v; the page says %s, %v", name, f.kind, slices.Sorted(maps.Keys(f.labels)), d.kind, slices.Sorted(maps.Keys(d.labels)))
		}
	}
	for name := range known {
		if shown[name] == nil {
			t.Errorf("%s is documented, and /metrics does not show it", name)
		}
	}
	if t.Failed() {
		t.Log(slices.Sorted(maps.Keys(shown)))
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if shown[name] == nil {
			t.Errorf("/metrics does not show %s", name)
		}
	}

	// Rules and panels name series that exist, by labels that exist.
	for _, file := range []string{"prometheus/alerts.yml", "grafana/tapestore.json"} {
		content, err := os.ReadFile(filepath.Join("../../deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for _, m := range regexp.MustCompile(`\b((?:tapestore|rpc_server|go|process)_\w+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(string(content), -1) {
			named++
			f := shown[m[1]]
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if of := shown[strings.TrimSuffix(m[1], suffix)]; f == nil && of != nil && of.kind == "histogram" {
					f = of
				}
			}
			if f == nil {
				t.Errorf("%s names %s, which /metrics does not show", file, m[1])
				continue
			}
			for _, label := range regexp.MustCompile(`(\w+) *(?:=|!)[=~]?\\?"`).FindAllStringSubmatch(m[2], -1) {
				if !f.labels[label[1]] && label[1] != "job" && label[1] != "instance" {
					t.Errorf("%s selects %s by the label %s, which it does not have", file, m[1], label[1])
				}
			}
		}
		if named < 15 {
			t.Errorf("%s names %d metrics only: its form has changed", file, named)
		}
	}
}

func TestTheDashboardIsComplete(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../deploy/grafana/tapestore.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &board); err != nil || board.UID != "tapestore" {
		t.Fatalf("%v, uid %q", err, board.UID)
	}
	taken := map[[2]int]string{}
	for _, p := range board.Panels {
		if p.Type != "row" && (len(p.Targets) == 0 || p.Targets[0].Expr == "") {
			t.Errorf("panel %q has no query", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if at[0] >= 24 || taken[at] != "" {
					t.Fatalf("panel %q is at %v, beside the grid or over %q", p.Title, at, taken[at])
				}
				taken[at] = p.Title
			}
		}
	}
}

// TestAlertRules runs the tests of the alert rules, and Prometheus's lint of /metrics.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: prometheus): the alert rules are not tested here")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	measures, err := startTelemetry(t.Context(), "127.0.0.1:0", hang, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { measures.stop(context.Background()) })
	traffic(t, measures)
	lint := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	lint.Stdin = bytes.NewReader([]byte(scrape(t, measures.address)))
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

func TestServeShowsMetrics(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "memory", "--healthz-listen", "", "--metrics-listen", "127.0.0.1:0")
	if _, err := p.client(t).BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a"}); err != nil {
		t.Fatal(err)
	}
	const call = `rpc_server_call_duration_seconds_count{rpc_method="tape.v1.Tape/BeginRun",rpc_response_status_code="OK",rpc_system_name="grpc"} 1`
	text := scrape(t, p.metrics)
	for began := time.Now(); !strings.Contains(text, call); text = scrape(t, p.metrics) { // a call is recorded after its reply
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("/metrics has no %s:\n%s", call, text)
		}
	}
	for _, want := range []string{
		`tapestore_store_operation_duration_seconds_count{engine="memory",operation="create_run",outcome="ok"} 1`,
		`tapestore_server_streams_limit 2048`,
		`tapestore_store_waiting_runs{engine="memory"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s:\n%s", want, text)
		}
	}
	res, err := http.Get("http://" + p.metrics + "/debug/pprof/")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("another path = %d, want 404", res.StatusCode)
	}
}
