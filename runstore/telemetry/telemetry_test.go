package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/runstore/telemetry"
)

// collected is an SDK in memory.
type collected struct {
	reader *sdkmetric.ManualReader
	spans  *tracetest.InMemoryExporter
	log    bytes.Buffer
	opts   telemetry.Options
}

func newCollected() *collected {
	c := &collected{reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	c.opts = telemetry.Options{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(c.spans)),
		Logger:         slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return c
}

// values returns each series of the metrics as NAME{LABELS}: a counter or gauge with its value, a
// histogram with its count and sum.
func (c *collected) values(t *testing.T) map[string]string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := c.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			add := func(labels attribute.Set, value string) {
				values[m.Name+"{"+labels.Encoded(attribute.DefaultEncoder())+"}"] = value
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, fmt.Sprintf("%d×, %d", p.Count, p.Sum))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if strings.HasSuffix(m.Name, ".duration") { // real time
						add(p.Attributes, fmt.Sprintf("%d×", p.Count))
						continue
					}
					add(p.Attributes, fmt.Sprintf("%d×, %v", p.Count, p.Sum))
				}
			default:
				t.Errorf("metric %s has the data %T", m.Name, data)
			}
		}
	}
	return values
}

func expect(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s = %q, want %q", name, got[name], value)
		}
	}
	if t.Failed() {
		var all []string
		for name, value := range got {
			all = append(all, name+" = "+value)
		}
		slices.Sort(all)
		t.Log("collected:\n" + strings.Join(all, "\n"))
	}
}

func spec(owner runstore.Owner) runstore.LeaseSpec {
	return runstore.LeaseSpec{Owner: owner, Reactor: "agent", TTL: 10 * time.Second}
}

// life runs a run through a takeover. advance moves the store clock beyond the expiry of a lease, or
// nil where another owner preempts.
func life(t *testing.T, s runstore.RunStore, advance func(time.Duration)) {
	t.Helper()
	ctx := t.Context()
	lease := spec("a")
	created, err := s.CreateRun(ctx, runstore.RunSpec{ID: "r", Lease: &lease, Runnable: runstore.After(0)})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.CreateRun(ctx, runstore.RunSpec{ID: "r"}); err != nil || again.New {
		t.Fatalf("CreateRun again = %+v, %v", again, err)
	}
	write := func(l runstore.Lease) error {
		b := runstore.NewBatch("r", l.Fence())
		b.Append("e", []byte("12345"))
		b.Append("e", []byte("67"))
		b.Put("k", []byte("890"))
		_, err := s.Commit(ctx, b)
		return err
	}
	if err := write(created.Lease); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	req := runstore.AcquireRequest{Run: "r", LeaseSpec: spec("b")}
	if _, err := s.AcquireLease(ctx, req); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Fatalf("AcquireLease of a live lease: %v", err)
	}
	if advance != nil {
		advance(12500 * time.Millisecond)
	} else {
		req.Preempt = "test"
	}
	granted, err := s.AcquireLease(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := write(created.Lease); !errors.Is(err, runstore.ErrFenced) {
			t.Fatalf("a write under the old fence: %v", err)
		}
	}
	if _, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: time.Second}); !errors.Is(err, runstore.ErrFenced) {
		t.Fatalf("a renewal under the old fence: %v", err)
	}
	if _, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetRun(ctx, "none"); !errors.Is(err, runstore.ErrNotFound) {
		t.Fatalf("GetRun of no run: %v", err)
	}
	b := runstore.NewBatch("r", runstore.AtVersion("k", 7))
	b.Delete("k")
	if _, err := s.Commit(ctx, b); !errors.Is(err, runstore.ErrConflict) {
		t.Fatalf("Commit at a wrong version: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.GetRun(canceled, "r"); !errors.Is(err, runstore.ErrUnavailable) {
		t.Fatalf("GetRun with a cancelled context: %v", err)
	}
}

// ofLife are the series that life leaves on every engine.
func ofLife(engine string) map[string]string {
	all := map[string]string{}
	for _, s := range []string{
		"operation.duration{engine=E,operation=create_run,outcome=ok} 1×",
		"operation.duration{engine=E,operation=create_run,outcome=exists} 1×",
		"operation.duration{engine=E,operation=commit,outcome=ok} 1×",
		"operation.duration{engine=E,operation=commit,outcome=fenced} 2×",
		"operation.duration{engine=E,operation=commit,outcome=conflict} 1×",
		"operation.duration{engine=E,operation=renew_lease,outcome=ok} 1×",
		"operation.duration{engine=E,operation=renew_lease,outcome=fenced} 1×",
		"operation.duration{engine=E,operation=acquire_lease,outcome=ok} 1×",
		"operation.duration{engine=E,operation=acquire_lease,outcome=lease_held} 1×",
		"operation.duration{engine=E,operation=release_lease,outcome=ok} 1×",
		"operation.duration{engine=E,operation=get_run,outcome=not_found} 1×",
		"operation.duration{engine=E,operation=get_run,outcome=canceled} 1×",
		"fenced.writes{engine=E,operation=commit} 2",
		"fenced.writes{engine=E,operation=renew_lease} 1",
		"write.events{engine=E,operation=commit} 1×, 2",
		"write.records{engine=E,operation=commit} 1×, 1",
		"write.size{engine=E,operation=commit} 1×, 10",
		"grants{engine=E,former=none} 1",
	} {
		name, value, _ := strings.Cut(s, " ")
		all["tapestore.store."+strings.ReplaceAll(name, "E", engine)] = value
	}
	return all
}

func TestATakeoverIsMeasured(t *testing.T) {
	t.Parallel()
	c, engine := newCollected(), memory.New(&memory.Options{Clock: func() time.Time { return time.Unix(1e9, 0) }})
	s := telemetry.Wrap(engine.Open(), "memory", &c.opts)
	defer func() { _ = s.Close() }()
	life(t, s, engine.Advance)
	want := ofLife("memory")
	want["tapestore.store.grants{engine=memory,former=expired}"] = "1"
	want["tapestore.store.vacancy{engine=memory}"] = "1×, 2.5" // 10 s of the lease, then 12.5 s
	expect(t, c.values(t), want)

	lines := strings.Split(strings.TrimSpace(c.log.String()), "\n")
	if len(lines) != 2 ||
		!strings.Contains(lines[0], `level=INFO msg="a lease was taken over" run=r owner=b token=2 former=expired from=a vacant=2.5s`) ||
		!strings.Contains(lines[1], `level=WARN msg="the store refused a write whose grant is not current" operation=commit run=r owner=a token=1 current_token=2 holder=b`) {
		t.Errorf("log:\n%s\nwant one line for the takeover and one for the three refused writes", strings.Join(lines, "\n"))
	}
}

func TestAPreemptionIsMeasuredOnSQLite(t *testing.T) {
	t.Parallel()
	c := newCollected()
	s, err := telemetry.Open(t.Context(), "sqlite::memory:", &c.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	life(t, s, nil)
	want := ofLife("sqlite")
	want["tapestore.store.grants{engine=sqlite,former=preempted}"] = "1"
	want["tapestore.store.vacancy{engine=sqlite}"] = "" // the lease was held all the time
	expect(t, c.values(t), want)
}

func TestSpans(t *testing.T) {
	t.Parallel()
	c, engine := newCollected(), memory.New(nil)
	s := telemetry.Wrap(engine.Open(), "memory", &c.opts)
	defer func() { _ = s.Close() }()
	if _, err := s.Now(t.Context()); err != nil { // in no trace: no span
		t.Fatal(err)
	}
	ctx, parent := c.opts.TracerProvider.Tracer("test").Start(t.Context(), "call")
	id := runstore.RunID("r\xff" + strings.Repeat("x", 254)) // not UTF-8
	lease := spec("a")
	created, err := s.CreateRun(ctx, runstore.RunSpec{ID: id, Lease: &lease})
	if err != nil {
		t.Fatal(err)
	}
	b := runstore.NewBatch(id, created.Lease.Fence())
	b.Append("e", []byte("123"))
	if _, err := s.Commit(ctx, b); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Now(ctx); !errors.Is(err, runstore.ErrClosed) {
		t.Fatal(err)
	}
	parent.End()
	spans := c.spans.GetSpans()
	if len(spans) != 4 {
		t.Fatalf("%d spans, want those of three operations and their parent", len(spans))
	}
	run := "tapestore.run=r\uFFFD" + strings.Repeat("x", 254)
	for i, want := range [][]string{
		{"tapestore.create_run", run, "tapestore.outcome=ok", "tapestore.owner=a", "tapestore.token=1", "tapestore.former=none", "tapestore.engine=memory"},
		{"tapestore.commit", run, "tapestore.events=1", "tapestore.records=0", "tapestore.bytes=3", "tapestore.owner=a", "tapestore.token=1", "tapestore.retries=0"},
		{"tapestore.now", "tapestore.outcome=closed"},
	} {
		got := []string{spans[i].Name}
		for _, a := range spans[i].Attributes {
			got = append(got, string(a.Key)+"="+a.Value.String())
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("span %d is %q, want %q in it", i, got, w)
			}
		}
		if spans[i].Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("span %s is no child of the caller's", spans[i].Name)
		}
	}
	if got := spans[2].Status.Code.String(); got != "Error" {
		t.Errorf("the status of a span on a closed store is %s, want Error", got)
	}
}

// Every kind of error has an outcome, so that no series is without one.
func TestEveryKindHasAnOutcome(t *testing.T) {
	t.Parallel()
	c := newCollected()
	var kind error
	s := telemetry.Wrap(intercept.Store(memory.New(nil).Open(), func(context.Context, string, func(context.Context) error) error {
		return kind
	}), "fake", &c.opts)
	for _, kind = range append(runstore.Kinds(), errors.New("not classified")) {
		if _, err := s.Now(t.Context()); !errors.Is(err, kind) {
			t.Errorf("Now = %v, want %v", err, kind)
		}
	}
	got := c.values(t)
	n := 0
	for name := range got {
		if strings.HasPrefix(name, "tapestore.store.operation.duration{") {
			n++
		}
	}
	if n != len(runstore.Kinds()) {
		t.Errorf("%d series, want one for each of %d kinds: %v", n, len(runstore.Kinds()), got)
	}
	expect(t, got, map[string]string{"tapestore.store.operation.duration{engine=fake,operation=now,outcome=unknown_outcome}": "2×"})
}

// The retries of an adapter are found in the context that it passes to its back-off.
func TestRetries(t *testing.T) {
	t.Parallel()
	c := newCollected()
	s := telemetry.Wrap(intercept.Store(memory.New(nil).Open(), func(ctx context.Context, _ string, do func(context.Context) error) error {
		b := outcome.NewBackoff(localClock, time.Hour, time.Microsecond)
		for range 3 {
			if !b.More(ctx) {
				return errors.New("no more attempts")
			}
		}
		return do(ctx)
	}), "fake", &c.opts)
	if _, err := s.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, c.values(t), map[string]string{"tapestore.store.retries{engine=fake,operation=now}": "3"})
}

func TestCapabilitiesRemain(t *testing.T) {
	t.Parallel()
	c := newCollected()
	file, err := sqlite.Open(t.Context(), ":memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := telemetry.Wrap(file, "sqlite", &c.opts)
	defer func() { _ = s.Close() }()
	if _, ok := runstore.As[runstore.EpochManager](s); !ok {
		t.Error("no EpochManager")
	}
	if _, ok := runstore.As[runstore.RunNotifier](s); !ok {
		t.Error("no RunNotifier")
	}
	if _, ok := runstore.As[runstore.StaleReader](s); ok {
		t.Error("a StaleReader on SQLite")
	}
	if _, ok := runstore.As[*sqlite.Store](s); !ok {
		t.Error("the engine's own store is not found")
	}
	multi, ok := runstore.As[runstore.MultiCommitter](s)
	if !ok {
		t.Fatal("no MultiCommitter")
	}
	var batches []runstore.Batch
	for _, id := range []runstore.RunID{"a", "b"} {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch(id, runstore.AtSeq(1))
		b.Append("e", []byte("1234"))
		batches = append(batches, b)
	}
	if _, err := multi.CommitMulti(t.Context(), batches); err != nil {
		t.Fatal(err)
	}
	expect(t, c.values(t), map[string]string{
		"tapestore.store.operation.duration{engine=sqlite,operation=commit_multi,outcome=ok}": "1×",
		"tapestore.store.write.events{engine=sqlite,operation=commit_multi}":                  "1×, 2",
		"tapestore.store.write.size{engine=sqlite,operation=commit_multi}":                    "1×, 8",
	})
}

// The number of series depends on the program, never on its data.
func TestManyRunsMakeNoSeries(t *testing.T) {
	t.Parallel()
	c := newCollected()
	s := telemetry.Wrap(memory.New(nil).Open(), "memory", &c.opts)
	defer func() { _ = s.Close() }()
	make100 := func(prefix string) int {
		for i := range 100 {
			id := runstore.RunID(fmt.Sprint(prefix, i))
			lease := spec(runstore.Owner("owner" + id))
			created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &lease})
			if err != nil {
				t.Fatal(err)
			}
			b := runstore.NewBatch(id, created.Lease.Fence())
			b.Append(fmt.Sprint("kind", i), []byte("x"))
			if _, err := s.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		return len(c.values(t))
	}
	if first, second := make100("a"), make100("b"); first != second {
		t.Errorf("%d series after 100 runs, %d after 200", first, second)
	}
}

// A client that presents ever new fences does not fill the log.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	c := newCollected()
	engine := memory.New(nil)
	s := telemetry.Wrap(engine.Open(), "memory", &c.opts)
	defer func() { _ = s.Close() }()
	for i := range 3000 {
		id := runstore.RunID(fmt.Sprint(i))
		lease := spec("a")
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &lease})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: created.Lease.Fence()}); err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch(id, created.Lease.Fence())
		b.Append("e", nil)
		if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrFenced) {
			t.Fatal(err)
		}
	}
	expect(t, c.values(t), map[string]string{"tapestore.store.fenced.writes{engine=memory,operation=commit}": "3000"})
	if lines := strings.Count(c.log.String(), "\n"); lines < 20 || lines > 1500 {
		t.Errorf("%d lines for 3000 refusals", lines)
	}
}
