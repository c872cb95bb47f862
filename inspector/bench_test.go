package inspector

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/tape"
)

// BenchmarkViews measures the requests of each view, and the bytes of their responses, on a store of
// many runs: 20,000 in memory, or INSPECTOR_RUNS runs in the store INSPECTOR_STORE, which keeps them.
// docs/inspector.md has figures.
func BenchmarkViews(b *testing.B) {
	url, runs := "memory:", 20_000
	if given := os.Getenv("INSPECTOR_STORE"); given != "" {
		url = given
	}
	if given := os.Getenv("INSPECTOR_RUNS"); given != "" {
		var err error
		if runs, err = strconv.Atoi(given); err != nil {
			b.Fatal(err)
		}
	}
	store, err := runstore.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	if _, err := store.GetRun(b.Context(), "long"); err != nil {
		populate(b, store, runs)
	}
	page, err := store.ScanIndex(b.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime, Newest: true, Limit: 1})
	if err != nil || len(page) == 0 {
		b.Fatal(page, err)
	}
	handler := New(store, nil)
	ordinary := string(tape.RunKey{App: "app", User: "user-0", Session: "s", Invocation: "0"}.ID())
	for _, v := range []struct{ name, path string }{
		{"runs", "runs"},
		{"runs, 200 rows", "runs?limit=200"},
		{"runs, a filter that matches one in 10", "runs?tenant=t-3"},
		{"runs, a filter that matches none", "runs?user=nobody"},
		{"runs, of one minute", "runs?until=" + page[0].At.Add(-time.Second).Format(time.RFC3339Nano)},
		{"runs, an exact id", "runs?prefix=long&limit=1"},
		{"run", "run?run=" + ordinary},
		{"summary, 4,000 records", "summary?run=long"},
		{"timeline, newest of 100,000 events", "timeline?run=long"},
		{"timeline, oldest of 100,000 events", "timeline?run=long&order=oldest"},
		{"timeline, an ordinary run", "timeline?run=" + ordinary},
		{"records", "records?run=long"},
		{"terms", "terms?run=long"},
		{"queues", "queues"},
		{"queue", "queue?index=runnable"},
		{"feed", "feed"},
	} {
		b.Run(v.name, func(b *testing.B) {
			bytes := 0
			for b.Loop() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, request("GET", "/api/"+v.path, nil))
				if w.Code != 200 {
					b.Fatal(w.Body)
				}
				bytes = w.Body.Len()
			}
			b.ReportMetric(float64(bytes), "body-B")
		})
	}
}

// populate creates a run with a long journal and many records, and the others.
func populate(b *testing.B, store runstore.RunStore, runs int) {
	tapes := tape.New(store, nil)
	work := make(chan int)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := range work {
				key := tape.RunKey{App: "app", User: fmt.Sprint("user-", i%1000), Session: "s", Invocation: fmt.Sprint(i)}
				begun, err := tapes.BeginRun(b.Context(), tape.BeginRunRequest{Key: key, Owner: "agent", TTL: time.Minute, Identity: tape.Identity{Tenant: fmt.Sprint("t-", i%10)}})
				if err == nil && i%100 != 0 {
					_, err = tapes.EndRun(b.Context(), tape.EndRunRequest{Run: key.ID(), Status: tape.RunTerminal, Fence: begun.Lease.Fence()})
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range runs {
		work <- i
	}
	close(work)
	all.Wait()
	created, err := store.CreateRun(b.Context(), runstore.RunSpec{ID: "long", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: 30 * time.Minute}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		batch := runstore.NewBatch("long", created.Lease.Fence())
		for j := range 1000 {
			batch.Append("step", fmt.Appendf(nil, `{"status":"done","step":%d,"text":"an event of an ordinary size, that has some hundred bytes or so of JSON"}`, i*1000+j))
		}
		for j := range 40 {
			batch.Put(runstore.RecordKey(fmt.Sprintf("part/%04d", i*40+j)), fmt.Appendf(nil, `{"part":%d}`, j))
		}
		if _, err := store.Commit(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
}
