package inspector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// bench is a handler over a memory store.
type bench struct {
	*testing.T
	engine  *memory.Store
	store   *memory.Handle
	handler http.Handler
	log     *bytes.Buffer
}

// newBench returns a bench whose requests may break leases, unless opts say otherwise.
func newBench(t *testing.T, opts *Options) *bench {
	b := &bench{T: t, engine: memory.New(nil), log: &bytes.Buffer{}}
	b.store = b.engine.Open()
	t.Cleanup(func() { _ = b.store.Close() })
	if opts == nil {
		opts = &Options{Authorize: func(*http.Request) (Access, error) { return Access{Permission: Break}, nil }}
	}
	opts.Logger = slog.New(slog.NewTextHandler(b.log, nil))
	b.handler = New(b.store, opts)
	return b
}

func (b *bench) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	return w
}

// request returns a request to a loopback address.
func request(method, target string, body io.Reader) *http.Request {
	return httptest.NewRequest(method, "http://127.0.0.1:8080"+target, body)
}

// get reads from the API: status and body.
func (b *bench) get(path string, query ...string) (int, string) {
	b.Helper()
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	w := b.do(request("GET", "/api/"+path+"?"+values.Encode(), nil))
	return w.Code, w.Body.String()
}

// read reads a result of the API.
func read[R any](b *bench, path string, query ...string) (result R) {
	b.Helper()
	status, body := b.get(path, query...)
	if status != http.StatusOK {
		b.Fatalf("%s %q: status %d: %s", path, query, status, body)
	}
	if err := json.Unmarshal([]byte(body), &result); err != nil {
		b.Fatalf("%s %q: %v in %s", path, query, err, body)
	}
	return result
}

func (b *bench) create(spec runstore.RunSpec) runstore.Lease {
	b.Helper()
	created, err := b.store.CreateRun(b.Context(), spec)
	if err != nil {
		b.Fatal(err)
	}
	return created.Lease
}

func (b *bench) commit(batch runstore.Batch) {
	b.Helper()
	if _, err := b.store.Commit(b.Context(), batch); err != nil {
		b.Fatal(err)
	}
}

// Pages of runs have every run once, the newest first.
func TestRunsPages(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	const runs = 230
	for i := range runs {
		b.create(runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("run-", i))})
	}
	next, looked, cursor := runs-1, 0, ""
	for {
		page := read[runsView](b, "runs", "cursor", cursor, "limit", "50")
		for _, run := range page.Runs {
			if want := fmt.Sprint("run-", next); run.ID != want || run.Ref != want {
				t.Fatalf("got run %q with ref %q, want %q", run.ID, run.Ref, want)
			}
			next--
		}
		looked += page.Looked
		if cursor = page.Cursor; cursor == "" {
			break
		}
		b.create(runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("new-", looked))}) // not on the next page
	}
	if next != -1 || looked != runs {
		t.Errorf("the pages end before run %d, after a look at %d runs", next, looked)
	}
}

// A search looks at a bounded number of runs in one request, says so, and continues. A run of exactly
// the id is found at once, even if it is unlisted.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, &Options{
		Authorize: func(*http.Request) (Access, error) { return Access{Permission: Break}, nil },
		Timeout:   time.Hour, // the number of runs bounds a request, not the time that this machine takes
	})
	b.create(runstore.RunSpec{ID: "needle/old"})
	for i := range 2*maxLooked + 500 {
		b.create(runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("hay-", i))})
	}
	b.create(runstore.RunSpec{ID: "needle", Unlisted: true})
	cursor := ""
	for request := 1; ; request++ {
		page := read[runsView](b, "runs", "prefix", "needle", "cursor", cursor)
		cursor = page.Cursor
		if exact := page.Exact != nil; exact != (request == 1) || exact && (page.Exact.ID != "needle" || !page.Exact.Unlisted) {
			t.Errorf("request %d: the run of exactly this id is %+v", request, page.Exact)
		}
		if page.Looked > maxLooked+lookPage {
			t.Errorf("request %d looked at %d runs", request, page.Looked)
		}
		if cursor == "" {
			if request != 3 || len(page.Runs) != 1 || page.Runs[0].ID != "needle/old" {
				t.Errorf("request %d: %+v", request, page.Runs)
			}
			return
		}
		if request > 3 || len(page.Runs) > 0 || page.Looked != maxLooked {
			t.Fatalf("request %d: looked at %d, found %d", request, page.Looked, len(page.Runs))
		}
	}
}

// Summaries that are large end a request early, and the search continues.
func TestSearchReadsBoundedBytes(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	const runs = 30
	for i := range runs {
		spec := runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("r", i))}
		spec.Writes.Put(runstore.SummaryKey, make([]byte, 1<<20))
		b.create(spec)
	}
	looked, requests := 0, 0
	for cursor, more := "", true; more; more = cursor != "" {
		page := read[runsView](b, "runs", "prefix", "none", "cursor", cursor)
		if page.Looked*(1<<20) > maxLookedBytes+2*runstore.MaxPageBytes {
			t.Errorf("one request looked at %d MiB", page.Looked)
		}
		looked += page.Looked
		requests++
		cursor = page.Cursor
	}
	if looked != runs || requests < 2 {
		t.Errorf("%d requests looked at %d runs", requests, looked)
	}
}

// Journals and records page through everything exactly once, in both orders, at every size.
func TestTimelinePages(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": 10, "large": 600 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			held := b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "o", TTL: time.Minute}})
			early := runstore.NewBatch("r", held.Fence())
			early.Put("before every event", nil)
			b.commit(early)
			const events = 35
			for i := range events {
				batch := runstore.NewBatch("r", held.Fence())
				batch.Append("k", bytes.Repeat([]byte{'x'}, size))
				batch.Put(runstore.RecordKey(fmt.Sprint("each/", i)), nil)
				if i%3 == 0 {
					batch.Put("changes", fmt.Append(nil, i))
				}
				b.commit(batch)
			}
			late := runstore.NewBatch("r", held.Fence())
			late.Put("after the last event", nil)
			b.commit(late)
			for _, order := range []string{"newest", "oldest"} {
				var seqs []int64
				records := map[string]int64{}
				cursor, pages := "", 0
				for {
					page := read[timelineView](b, "timeline", "run", "r", "order", order, "limit", "8", "cursor", cursor)
					var at int64
					for i, item := range page.Items {
						seq, _, _ := item.at()
						if i > 0 && (order == "newest" && seq > at || order == "oldest" && seq < at) {
							t.Fatalf("%s: seq %d follows %d", order, seq, at)
						}
						at = seq
						if item.Event != nil {
							seqs = append(seqs, seq)
						} else if before, twice := records[item.Record.Key]; twice {
							t.Fatalf("%s: record %q at %d and %d", order, item.Record.Key, before, seq)
						} else {
							records[item.Record.Key] = seq
						}
					}
					pages++
					if cursor = page.Cursor; cursor == "" {
						break
					}
				}
				if len(seqs) != events || len(records) != events+3 || records["changes"] != 34 || records["before every event"] != 0 || records["after the last event"] != events {
					t.Errorf("%s: %d events, %d records: %v", order, len(seqs), len(records), records)
				}
				for i, seq := range seqs {
					if want := map[string]int64{"newest": int64(events - i), "oldest": int64(i + 1)}[order]; seq != want {
						t.Fatalf("%s: event %d has seq %d", order, i, seq)
					}
				}
				if pages < events/8 {
					t.Errorf("%s: %d pages", order, pages)
				}
			}
		})
	}
}

// A run with more records than one request looks at says so, and the list of records has all of them.
func TestManyRecords(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	held := b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "o", TTL: time.Minute}})
	const records = maxRecordsRead + 200
	for i := 0; i < records; {
		batch := runstore.NewBatch("r", held.Fence())
		for range 200 {
			batch.Put(runstore.RecordKey(fmt.Sprintf("%05d", i)), nil)
			i++
		}
		b.commit(batch)
	}
	page := read[timelineView](b, "timeline", "run", "r")
	if page.RecordsRead != maxRecordsRead || !page.RecordsMore || len(page.Items) != maxItemRecords || page.Omitted != maxRecordsRead-maxItemRecords {
		t.Errorf("the timeline looked at %d (more %v), shows %d, omits %d", page.RecordsRead, page.RecordsMore, len(page.Items), page.Omitted)
	}
	if s := read[summaryView](b, "summary", "run", "r"); s.Read != maxRecordsRead || !s.More || len(s.Counts) != 1 || s.Counts[0].Count != maxRecordsRead {
		t.Errorf("the summary: %+v", s)
	}
	type list struct {
		Records []recordView
		Cursor  string
	}
	n := 0
	for cursor, more := "", true; more; more = cursor != "" {
		page := read[list](b, "records", "run", "r", "limit", "200", "cursor", cursor)
		for _, r := range page.Records {
			if want := fmt.Sprintf("%05d", n); r.Key != want {
				t.Fatalf("record %q, want %q", r.Key, want)
			}
			n++
		}
		cursor = page.Cursor
	}
	if n != records {
		t.Errorf("the list has %d records, want %d", n, records)
	}
	if page := read[list](b, "records", "run", "r", "prefix", "0001"); len(page.Records) != 10 {
		t.Errorf("%d records begin with 0001", len(page.Records))
	}
}

// An address that is wrong gets a clear error, never one of the server.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	held := b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "o", TTL: time.Minute}})
	batch := runstore.NewBatch("r", held.Fence())
	batch.Append("k", nil)
	b.commit(batch)
	other := params{url.Values{"prefix": {"other"}}}.next("runs", "x")
	lie := func(list, at string, query ...string) string {
		p := params{url.Values{}}
		for i := 0; i < len(query); i += 2 {
			p.Set(query[i], query[i+1])
		}
		return p.next(list, at)
	}
	for _, c := range []struct {
		path   string
		query  []string
		status int
		says   string
	}{
		{"runs", []string{"limit", "0"}, 400, "limit: "},
		{"runs", []string{"limit", "201"}, 400, "from 1 to 200"},
		{"runs", []string{"limit", "x"}, 400, "limit: "},
		{"runs", []string{"status", "sleeping"}, 400, "status: "},
		{"runs", []string{"lease", "lost"}, 400, "lease: "},
		{"runs", []string{"from", "yesterday"}, 400, "from: "},
		{"runs", []string{"until", "10000-01-01T00:00:00Z"}, 400, "until: "},
		{"runs", []string{"prefix", "~!"}, 400, "prefix: "},
		{"runs", []string{"cursor", "x"}, 400, "cursor: "},
		{"runs", []string{"cursor", "e30"}, 400, "cursor: is not one"},
		{"runs", []string{"cursor", other}, 400, "cursor: belongs to another list"},
		{"runs", []string{"cursor", lie("runs", "not the store's")}, 400, "cursor"},
		{"runs", []string{"cursor", lie("runs", strings.Repeat("A", 5000))}, 400, "cursor"},
		{"run", nil, 400, "run id"},
		{"run", []string{"run", "none"}, 404, "not found"},
		{"run", []string{"run", "~~"}, 400, "run: "},
		{"run", []string{"run", strings.Repeat("x", 257)}, 400, "256"},
		{"run", []string{"run", "r", "wait", "31"}, 400, "wait: "},
		{"run", []string{"run", "r", "wait", "-1"}, 400, "wait: "},
		{"runs", []string{"wait", "5"}, 400, "wait: this list"},
		{"timeline", []string{"run", "none"}, 404, "not found"},
		{"timeline", []string{"run", "r", "order", "random"}, 400, "order: "},
		{"timeline", []string{"run", "r", "cursor", lie("timeline", "0", "run", "r")}, 400, "cursor: "},
		{"timeline", []string{"run", "r", "cursor", lie("timeline", "-1", "run", "r")}, 400, "cursor: "},
		{"timeline", []string{"run", "r", "cursor", lie("timeline", "1e3", "run", "r")}, 400, "cursor: "},
		{"timeline", []string{"run", "r", "cursor", lie("timeline", "9000000000000000000", "run", "r")}, 200, `"seq":1`},
		{"timeline", []string{"run", "r", "order", "oldest", "cursor", lie("timeline", "9000000000000000000", "run", "r", "order", "oldest")}, 200, `"items":[]`},
		{"timeline", []string{"run", "r", "cursor", lie("timeline", "1", "run", "other")}, 400, "another list"},
		{"records", []string{"run", "none"}, 404, "not found"},
		{"records", []string{"run", "r", "cursor", lie("records", "~!", "run", "r")}, 400, "cursor: "},
		{"records", []string{"run", "r", "cursor", lie("records", strings.Repeat("x", 1025), "run", "r")}, 400, "1024"},
		{"terms", []string{"run", "none"}, 404, "not found"},
		{"terms", []string{"run", "r", "cursor", lie("terms", "99999", "run", "r")}, 200, `"terms":[`},
		{"queue", nil, 400, "index"},
		{"queue", []string{"index", strings.Repeat("x", 257)}, 400, "256"},
		{"queue", []string{"index", "runs", "all", "perhaps"}, 400, "all: "},
		{"queue", []string{"index", "none"}, 200, `"entries":[]`},
		{"queue", []string{"index", "runs", "cursor", lie("queue", "x", "index", "runs")}, 400, "cursor"},
		{"feed", []string{"after", "-2"}, 400, "after: "},
		{"feed", []string{"after", "9223372036854775807"}, 400, "position"},
		{"group", nil, 400, "group"},
		{"group", []string{"name", "a/b"}, 400, "slash"},
		{"group", []string{"name", "none"}, 200, `"shards":[]`},
		{"group", []string{"name", "none", "cursor", lie("group", "77", "name", "none")}, 200, `"shards":[]`},
		{"group", []string{"name", "none", "cursor", lie("group", "-1", "name", "none")}, 400, "cursor: "},
		{"value", []string{"run", "r"}, 400, "name one"},
		{"value", []string{"run", "r", "seq", "1", "record", "x"}, 400, "name one"},
		{"value", []string{"run", "r", "seq", "2"}, 404, "no such event"},
		{"value", []string{"run", "r", "seq", "0"}, 404, ""},
		{"value", []string{"run", "r", "record", "x"}, 404, "no such event or record"},
		{"value", []string{"run", "none", "seq", "1"}, 404, "not found"},
		{"nothing", nil, 404, "no such request"},
	} {
		status, body := b.get(c.path, c.query...)
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %q: status %d: %s; want %d and %q", c.path, c.query, status, body, c.status, c.says)
		}
	}
	if b.log.Len() > 0 {
		t.Errorf("bad requests are in the log: %s", b.log)
	}
}

// Every request works on an engine with cursors of its own form, and refuses cursors that lie.
func TestOnSQLite(t *testing.T) {
	t.Parallel()
	store, err := runstore.Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := newBench(t, nil)
	b.handler = New(store, nil)
	for i := range 7 {
		spec := runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("\xffr", i)), Runnable: runstore.After(0)}
		spec.Writes.Append("k", nil)
		spec.Writes.Put("job", nil, runstore.Place{Index: "jobs", At: runstore.After(0)})
		if _, err := store.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for path, query := range map[string][]string{"runs": nil, "queue": {"index", "jobs"}} {
		type page struct {
			Runs, Entries []json.RawMessage
			Cursor        string
		}
		n := 0
		for cursor, more := "", true; more; more = cursor != "" {
			p := read[page](b, path, append([]string{"limit", "2", "cursor", cursor}, query...)...)
			n += len(p.Runs) + len(p.Entries)
			cursor = p.Cursor
		}
		if n != 7 {
			t.Errorf("%s: %d rows, want 7", path, n)
		}
		p := params{url.Values{}}
		for i := 0; i < len(query); i += 2 {
			p.Set(query[i], query[i+1])
		}
		for _, at := range []string{"x", "\x00\xff", strings.Repeat("A", 5000), `{"At":-1}`} {
			if status, body := b.get(path, append([]string{"cursor", p.next(path, at)}, query...)...); status != 400 {
				t.Errorf("%s after %.20q: status %d: %s", path, at, status, body)
			}
		}
	}
	run := toRef("\xffr3")
	for _, path := range []string{"about", "run", "summary", "timeline", "records", "terms", "queues", "feed"} {
		if status, body := b.get(path, "run", run); status != 200 {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
	}
	if q := read[struct{ Queues []queueView }](b, "queues").Queues[0]; q.Due != 7 {
		t.Errorf("%d runs without a driver, want 7", q.Due)
	}
}
