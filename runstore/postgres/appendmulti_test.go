package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// sharedAppends is a tracer that records which runs each statement for several runs
// appends to.
type sharedAppends struct {
	mu    sync.Mutex
	calls [][]string
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *sharedAppends) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !slices.Contains(postgres.MultiStatements(), data.SQL) {
		return ctx
	}
	var runs []string
	for _, id := range data.Args[0].([][]byte) {
		runs = append(runs, string(id))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, runs)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *sharedAppends) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// runs returns the runs that a statement for several was sent for, each once.
func (s *sharedAppends) runs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Concat(s.calls...)
	slices.Sort(all)
	return slices.Compact(all)
}

// The suite's cases for appends to many runs really send the statement for several runs, also for
// runs whose fence does not hold. The scheduler decides which runs share it, so a case may run
// again.
func TestSuiteSharesAppends(t *testing.T) {
	t.Parallel()
	names := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("run-%02d", i))
		}
		return all
	}
	for name, tc := range map[string]struct {
		bad  []string // runs whose fence does not hold
		want int      // how many of them have to share a statement
	}{
		"I3/appends-to-many-runs-at-once-are-fenced-one-by-one":       {names(12)[4:], 8},
		"I3/appends-to-many-runs-at-once-lose-to-a-preempt-held-open": {names(3), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			traced := &sharedAppends{}
			h := engines.Postgres(server(t), nil)
			instance := h.New
			h.New = func(ct conformance.T) conformance.Instance {
				i := instance(ct)
				i.Open = func(context.Context) (runstore.RunStore, error) {
					return tryOpen(t, i.URL, func(config *pgxpool.Config, _ *postgres.Options) { config.ConnConfig.Tracer = traced })
				}
				return i
			}
			c, ok := conformance.Find(name)
			if !ok {
				t.Fatalf("there is no case %s", name)
			}
			var shared []string
			for range 10 {
				if result := conformance.RunCase(t.Context(), h, c); result.Status != conformance.Passed {
					t.Fatalf("%s %s: %s", name, result.Status, result.Reason)
				}
				shared = slices.DeleteFunc(traced.runs(), func(id string) bool { return !slices.Contains(tc.bad, id) })
				if len(shared) >= tc.want {
					return
				}
			}
			t.Errorf("of the runs whose fence does not hold, %q shared a statement in 10 runs of the case, want %d of %q", shared, tc.want, tc.bad)
		})
	}
}
