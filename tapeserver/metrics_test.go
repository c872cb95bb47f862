package tapeserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/telemetry"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// series returns the collected series as NAME{LABELS}: gauges and sums with their values, histograms
// with their counts.
func series(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := func(labels attribute.Set) string {
				return m.Name + "{" + labels.Encoded(attribute.DefaultEncoder()) + "}"
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					got[name(p.Attributes)] = p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[name(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[name(p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return got
}

func TestTheServerIsMeasured(t *testing.T) {
	t.Parallel()
	reader, spans, begun := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter(), tracetest.NewSpanRecorder()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSpanProcessor(begun))
	store := telemetry.Wrap(memory.New(nil).Open(), "memory", &telemetry.Options{MeterProvider: meters, TracerProvider: tracers})
	server := tapeserver.New(store, &tapeserver.Options{
		MeterProvider: meters, TracerProvider: tracers,
		Limits: tapeserver.Limits{Connections: 1, Streams: 7, BytesInFlight: 100 << 20, HandshakeTimeout: never},
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if got := series(t, reader); len(got) > 0 {
			if _, still := got["tapestore.server.streams{}"]; still {
				t.Error("the gauges of a server that has ended are still shown")
			}
		}
	}()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := tapepb.NewTapeClient(conn)
	run, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a", LeaseOwner: "o", LeaseTtlMs: 60000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run.GetRunId(), ResponseJson: "{}"}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // a client calls what it wants
		err := conn.Invoke(t.Context(), fmt.Sprintf("/tape.v1.Tape/Guess%d", i), &emptypb.Empty{}, &emptypb.Empty{})
		wantStatus(t, "an unknown method", err, codes.Unimplemented, "Guess")
	}
	stream, err := c.SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: run.GetRunId()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // it is in flight
		t.Fatal(err)
	}
	second, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, second) // the server closes it
	_ = second.Close()

	// A call is measured after its reply was sent.
	const callDuration = "rpc.server.call.duration{rpc.method=tape.v1.Tape/BeginRun,rpc.response.status_code=OK,rpc.system.name=grpc}"
	isDecision := func(s tracetest.SpanStub) bool { return s.Name == "tape.v1.Tape/RecordDecision" }
	got := series(t, reader)
	for got[callDuration] == 0 || !slices.ContainsFunc(spans.GetSpans(), isDecision) {
		time.Sleep(time.Millisecond) // between two looks
		got = series(t, reader)
	}
	for name, want := range map[string]int64{
		"tapestore.server.streams{}":                                          1,
		"tapestore.server.streams.limit{}":                                    7,
		"tapestore.server.connections{}":                                      1,
		"tapestore.server.connections.limit{}":                                1,
		"tapestore.server.connections.refused{limit=connections}":             1,
		"tapestore.server.connections.refused{limit=connections_per_address}": 0,
		"tapestore.server.inflight.limit{}":                                   100 << 20,
		"tapestore.server.draining{}":                                         0,
		"tapestore.server.unfenced.writes{}":                                  1,
		"tapestore.server.matcher.shards{state=held}":                         0,
		"tapestore.server.matcher.shards{state=known}":                        0,
		"tapestore.server.matcher.shards{state=stalled}":                      0,
		callDuration: 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %d, %v, want %d", name, v, ok, want)
		}
	}
	for name := range got {
		if strings.Contains(name, "Guess") || strings.Contains(name, run.GetRunId()) {
			t.Errorf("a client made the series %s", name)
		}
	}
	for _, s := range begun.Started() { // gRPC never ends those of unknown methods
		if strings.Contains(s.Name(), "Guess") {
			t.Errorf("a client made the span %s", s.Name())
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	// The spans of the store are children of the call's.
	var call, commit *tracetest.SpanStub
	for _, s := range spans.GetSpans() {
		switch s.Name {
		case "tape.v1.Tape/RecordDecision":
			call = &s
		case "tapestore.commit":
			commit = &s
		}
	}
	if call == nil || commit == nil || commit.SpanContext.TraceID() != call.SpanContext.TraceID() || commit.Parent.SpanID() != call.SpanContext.SpanID() {
		t.Errorf("the commit %+v is not in the call %+v", commit, call)
	}
}

func TestBytesInFlightAreShown(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	store := hold(t, false)
	address, stop := listen(t, store, &tapeserver.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), DrainTimeout: never})
	c := dial(t, address).begin(t)
	id := c.call(t, "GetRun")
	c.send(t, id, &tapepb.GetRunRequest{RunId: "r"}, -1)
	<-store.called
	const reply = 256 << 10 // what the server keeps free for the reply of GetRun
	if got := series(t, reader)["tapestore.server.inflight{}"]; got < reply || got > reply+100 {
		t.Errorf("%d bytes in flight during a call, want its request and %d", got, reply)
	}
	close(store.release)
	wantStatus(t, "GetRun", c.status(t, id), codes.NotFound, "no such run")
	if got := series(t, reader)["tapestore.server.inflight{}"]; got != 0 {
		t.Errorf("%d bytes in flight after the call", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestVerboseProbes(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	store := engine.Open()
	probes := &tapeserver.Probes{}
	server := httptest.NewServer(probes)
	defer server.Close()
	probe := func(code int, form string) {
		t.Helper()
		res, err := http.Get(server.URL + "/readyz?verbose")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != code || !regexp.MustCompile("^"+form+"$").Match(body) {
			t.Errorf("%d %q, %v; want %d %s", res.StatusCode, body, err, code, form)
		}
	}
	probe(503, `\[-\] started: the store is still being opened\nnot ready\n`)
	probes.SetServer(tapeserver.New(store, nil))
	if _, err := store.RaiseEpoch(t.Context(), "a secret reason"); err != nil {
		t.Fatal(err)
	}
	probe(200, `\[\+\] started: yes\n\[\+\] serving: yes\n\[\+\] store: answers, in [\d.]+(µs|ms|s)\n\[\+\] epoch: 1\n\[\+\] matcher: holds 0 of 0 shards, 0 stalled\nready\n`)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	probe(503, `\[\+\] started: yes\n\[\+\] serving: yes\n\[-\] store: does not answer, after [\d.]+(µs|ms|s)\n\[\+\] matcher: holds 0 of 0 shards, 0 stalled\nnot ready\n`)
}

// heldEpochs is a store whose Epochs waits for release, and counts its calls.
type heldEpochs struct {
	*memory.Handle
	calls   atomic.Int32
	release chan struct{}
}

func (s *heldEpochs) Epochs(ctx context.Context) ([]runstore.EpochChange, error) {
	s.calls.Add(1)
	<-s.release
	return s.Handle.Epochs(ctx)
}

// Verbose probes that ask at the same time cost the store one read of the epochs, since their port
// has no authentication. A later one reads them again.
func TestVerboseProbesShareARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &heldEpochs{Handle: memory.New(nil).Open(), release: make(chan struct{})}
		probes := &tapeserver.Probes{}
		probes.SetServer(tapeserver.New(store, nil))
		ask := func(want string) {
			reply := httptest.NewRecorder()
			probes.ServeHTTP(reply, httptest.NewRequest("GET", "/readyz?verbose", nil))
			if got := reply.Body.String(); reply.Code != 200 || !strings.Contains(got, "epoch: "+want+"\n") {
				t.Errorf("got %d %q, want epoch %s", reply.Code, got, want)
			}
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { ask("0") })
		}
		synctest.Wait() // all wait for the store
		if n := store.calls.Load(); n != 1 {
			t.Errorf("20 concurrent probes read the epochs %d times, want once", n)
		}
		close(store.release)
		all.Wait()
		if _, err := store.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		ask("1")
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}
