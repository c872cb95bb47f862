package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// plan is a node of a plan as EXPLAIN reports it.
type plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Rows     float64 `json:"Actual Rows"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Plans    []plan
}

// each calls f for the plan and all below it.
func (p plan) each(f func(p plan)) {
	f(p)
	for _, below := range p.Plans {
		below.each(f)
	}
}

func (p plan) has(node string) (yes bool) {
	p.each(func(p plan) { yes = yes || p.Node == node })
	return yes
}

// indexes returns the names of the indexes that are used, sorted.
func (p plan) indexes() []string {
	used := map[string]bool{}
	p.each(func(p plan) {
		if p.Index != "" {
			used[p.Index] = true
		}
	})
	return slices.Sorted(maps.Keys(used))
}

// explain returns the plan that a handle's session has for a statement once it is
// prepared: the same for every value.
func explain(t *testing.T, conn *pgx.Conn, options, sql string, args ...any) plan {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), "PREPARE it AS "+sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer exec(t, conn, "DEALLOCATE it")
	if args == nil {
		for n := 1; strings.Contains(sql, fmt.Sprintf("$%d", n)); n++ {
			args = append(args, nil)
		}
	}
	execute := "EXPLAIN (FORMAT JSON" + options + ") EXECUTE it"
	if len(args) > 0 {
		execute += "("
		for i := range args {
			execute += fmt.Sprintf("$%d,", i+1)
		}
		execute = strings.TrimSuffix(execute, ",") + ")"
	}
	var told []struct{ Plan plan }
	text := get[string](t, conn, execute, args...)
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		t.Fatal(err)
	}
	return told[0].Plan
}

// session connects as a handle does.
func session(t *testing.T, address string, s *postgres.Store) *pgx.Conn {
	t.Helper()
	for name, value := range postgres.Settings(s) {
		address = with(address, name+"="+url.PathEscape(value))
	}
	return connect(t, with(address, "default_query_exec_mode=simple_protocol"))
}

// fill stores n more runs, each with two events, two records and two index entries. One of ten is
// runnable.
func fill(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	exec(t, conn, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, runnable, place, expires, status, grant_state,
			purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
		SELECT 2, 1, 0, 0, clock_timestamp(), CASE WHEN i % 10 = 0 THEN clock_timestamp() END, CASE WHEN i % 10 = 0 THEN clock_timestamp() END, clock_timestamp() + interval '1 hour', 0,
			CASE WHEN i % 20 = 0 THEN 1 ELSE 2 END, false, false, convert_to('run ' || i, 'UTF8'), 'g', 'test', '', '', ''
		FROM generate_series(1 + (SELECT count(*) FROM tapestore.runs), $1::bigint + (SELECT count(*) FROM tapestore.runs)) i`, n)
	exec(t, conn, `INSERT INTO tapestore.events (run, seq, position, token, time, kind, owner, data)
		SELECT no, seq, (no * 2 + seq) << 14, 1, created, 'test', 'test', '0123456789' FROM tapestore.runs, generate_series(1, 2) seq ON CONFLICT DO NOTHING`)
	exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
		SELECT no, 1, 0, 0, created, created, 1, key, 'value' FROM tapestore.runs, unnest('{run,timer}'::bytea[]) key ON CONFLICT DO NOTHING`)
	exec(t, conn, `INSERT INTO tapestore.places (at, written, run, name, key)
		SELECT created, created, no, name, 'timer' FROM tapestore.runs, unnest('{queue,other}'::bytea[]) name ON CONFLICT DO NOTHING`)
}

// lengthen stores n more events, records and index entries of the first run.
func lengthen(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	exec(t, conn, `INSERT INTO tapestore.events (run, seq, position, token, time, kind, owner, data)
		SELECT 1, 100 + i, (1000000 + i)::bigint << 14, 1, clock_timestamp(), 'test', 'test', '0123456789' FROM generate_series(1, $1::integer) i`, n)
	exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
		SELECT 1, 1, 0, 0, clock_timestamp(), clock_timestamp(), 1, int4send(i), 'value' FROM generate_series(1, $1::integer) i`, n)
	exec(t, conn, `INSERT INTO tapestore.places (at, written, run, name, key)
		SELECT clock_timestamp(), clock_timestamp(), 1, 'queue', int4send(i) FROM generate_series(1, $1::integer) i`, n)
}

// wantIndexes are the indexes that each read walks.
var wantIndexes = map[string][]string{
	"run":                       {"records_pkey", "runs_id_key"},
	"journal":                   {"events_pkey", "runs_id_key"},
	"records":                   {"records_pkey", "runs_id_key"},
	"keys":                      {"records_pkey", "runs_id_key"},
	"feed":                      {"events_position", "runs_pkey"},
	"strangers":                 {"events_position", "pg_database_datname_index"},
	"lag":                       {"events_position"},
	"last position":             {"events_position"},
	"index queue":               {"places_pkey", "records_pkey", "runs_pkey"},
	"index queue, newest first": {"places_pkey", "records_pkey", "runs_pkey"},
	"index queue with heads":    {"places_pkey", "records_pkey", "runs_pkey"},
	"index runs":                {"records_pkey", "runs_created"},
	"index runs, newest first":  {"records_pkey", "runs_created"},

	"index queue with heads, newest first": {"places_pkey", "records_pkey", "runs_pkey"},

	"index runnable":               {"records_pkey", "runs_runnable"},
	"index runnable, newest first": {"records_pkey", "runs_runnable"},
}

// No read scans a table that grows, and none sorts more than its page: each costs
// what it returns, however much is stored, and whether or not the server knows yet
// how much that is.
func TestPlans(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := session(t, address, open(t, address))
	check := func(when string, limit int) {
		statements := postgres.Reads(limit)
		maps.Copy(statements, postgres.Writes())
		for name, sql := range statements {
			p := explain(t, conn, "", sql)
			p.each(func(p plan) {
				if p.Node == "Seq Scan" && slices.Contains([]string{"runs", "events", "records", "places", "batches"}, p.Relation) {
					t.Errorf("%s, %s: scans all %s", name, when, p.Relation)
				}
				// The keys of one read are few, as are the records of a commit and the results of a
				// run (see TestCommitCostsWhatItChanges). Others sort behind their LIMIT.
				if strings.Contains(p.Node, "Sort") && !p.has("Limit") && name != "keys" && !strings.HasPrefix(name, "commit") {
					t.Errorf("%s, %s: sorts more than its page", name, when)
				}
				// A statement's own arguments and locks, and the open transactions, are no table.
				if p.Node == "HashAggregate" || p.Node == "Hash" && p.Plans[0].Node != "CTE Scan" && p.Plans[0].Node != "Function Scan" {
					t.Errorf("%s, %s: hashes a table: %+v", name, when, p)
				}
			})
			if want, read := wantIndexes[name]; read && !slices.Equal(p.indexes(), want) {
				t.Errorf("%s, %s: uses the indexes %v, want %v", name, when, p.indexes(), want)
			}
		}
	}
	for _, limit := range []int{20, runstore.MaxPage} {
		check("right after creation", limit)
	}
	fill(t, conn, 100)
	lengthen(t, conn, 40_000)
	for _, limit := range []int{20, runstore.MaxPage} {
		check("with 40,000 events, records and entries of 100 runs, not analyzed", limit)
	}
	fill(t, conn, 20_000)
	check("with 20,000 runs, not analyzed", 20)
	exec(t, conn, "VACUUM ANALYZE")
	for _, limit := range []int{1, 20, 100} {
		check("with 20,000 runs", limit)
	}
}

// A handle over a proxy, or over a caller's pool, reads a page of the feed without sorting all events either, although
// its sessions have the server's settings.
func TestFeedPlansOfOtherSessions(t *testing.T) {
	t.Parallel()
	address := database(t)
	open(t, address)
	conn := connect(t, with(address, "default_query_exec_mode=simple_protocol"))
	fill(t, conn, 100)
	lengthen(t, conn, 40_000)
	exec(t, conn, "VACUUM tapestore.events") // no ANALYZE
	exec(t, conn, "BEGIN")
	exec(t, conn, postgres.Reads(0)["plans"])
	for _, limit := range []int{20, runstore.MaxPage} {
		for _, name := range []string{"feed", "newest"} {
			explain(t, conn, "", postgres.Reads(limit)[name]).each(func(p plan) {
				if strings.Contains(p.Node, "Sort") && !p.has("Limit") || strings.HasPrefix(p.Node, "Bitmap") {
					t.Errorf("%s of %d: the plan has a %s of %s", name, limit, p.Node, p.Relation)
				}
			})
		}
	}
	plans := &calls{text: "enable_bitmapscan"}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	plans.through(config, nil)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	shared, err := postgres.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Close() })
	for kind, s := range map[string]*postgres.Store{"proxy": open(t, with(address, "pooled=yes"), plans.through), "caller's pool": shared} {
		plans.started.Store(0)
		if _, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		if n := plans.started.Load(); n != 1 {
			t.Errorf("%s: a page of the feed is read with %d statements that turn off plans, want 1", kind, n)
		}
	}
}

// A page of an index touches as many blocks of a store with 20,000 runs as of one
// with 1,000, also where it begins in the middle, at a cursor or at the lower bound, and
// where it ends there.
func TestScanCostsWhatItReturns(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := session(t, address, s)
	cost := func() map[string]int {
		exec(t, conn, "VACUUM ANALYZE")
		blocks, until := map[string]int{}, time.Now().Add(time.Hour)
		measure := func(what string, entries float64, q runstore.IndexQuery) {
			t.Helper()
			q.Until, q.Limit = until, 20
			sql, args, err := postgres.ScanOf(q)
			if err != nil {
				t.Fatal(err)
			}
			p := explain(t, conn, ", ANALYZE, BUFFERS", sql, args...)
			if p.Rows != entries {
				t.Errorf("%s: a page of %v entries, want %v", what, p.Rows, entries)
			}
			p.each(func(p plan) {
				if p.Removed > 0 && p.Node != "Aggregate" { // that has one row, of what the page passed over
					t.Errorf("%s: reads %v entries that it does not return", what, p.Removed)
				}
			})
			blocks[what] = p.Hit + p.Read
		}
		middle := get[time.Time](t, conn, `SELECT created FROM tapestore.runs ORDER BY created LIMIT 1 OFFSET (SELECT count(*) FROM tapestore.runs) / 2`)
		for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable, "queue"} {
			page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, From: middle, Until: until, Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			first, last := page[0], page[len(page)-1]
			for _, heads := range []bool{false, true} {
				what := fmt.Sprintf("%s, heads: %v", index, heads)
				q := runstore.IndexQuery{Index: index, Heads: heads}
				measure(what, 20, q)
				q.From = first.At
				measure(what+", from the middle", 20, q)
				q.From, q.After = time.Time{}, first.Cursor
				measure(what+", behind the middle", 20, q)
				q.Newest, q.After = true, ""
				measure(what+", newest first", 20, q)
				q.After = first.Cursor
				measure(what+", newest first before the middle", 20, q)
				q.From, q.After = first.At, last.Cursor
				measure(what+", newest first between two in the middle", 9, q)
			}
		}
		return blocks
	}
	fill(t, conn, 1_000)
	few := cost()
	fill(t, conn, 19_000)
	for what, blocks := range cost() {
		t.Logf("%s: %d blocks, were %d", what, blocks, few[what])
		if more := 20; blocks > 2*few[what]+more { // an index may have got a level higher
			t.Errorf("%s: a page of 20 touches %d blocks with 20,000 runs, %d with 1,000", what, blocks, few[what])
		}
	}
}

// A page of records with a prefix reads no key behind the prefix, and none before the page, also if fewer
// records than the limit have the prefix.
func TestPageOfAPrefixReadsNoOtherKeys(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := session(t, address, s)
	hold(t, s, "run")
	exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
		SELECT no, 1, 0, 0, created, created, 0, part || int4send(i), 'value' FROM tapestore.runs, unnest('{0,a/,z,\\xffff}'::bytea[]) part,
			generate_series(1, CASE WHEN part = 'a/' THEN 3 ELSE 5000 END) i`)
	exec(t, conn, `VACUUM ANALYZE tapestore.records`)
	for _, tc := range []struct {
		prefix, after runstore.RecordKey
		want          float64
	}{
		{"a/", "", 3}, {"a/", "0", 3}, {"a/", "a/\x00\x00\x00\x01", 2}, {"a/", "a/\x00\x00\x00\x03", 0}, {"a/", "zz", 0},
		{"\xff", "", 100}, {"\xff\xff", "\xff\xff\x00\x00\x13\x87", 1}, {"\xff\xff\xff", "", 0}, {"", "", 100}, {"", "z\x00\x00\x13\x88", 100},
	} {
		sql, args := postgres.RecordsOf("run", runstore.RecordQuery{Prefix: tc.prefix, After: tc.after, Limit: 100})
		p := explain(t, conn, ", ANALYZE, BUFFERS", sql, args...)
		p.each(func(p plan) {
			if p.Relation == "records" && (p.Rows != tc.want || p.Removed > 0) {
				t.Errorf("prefix %q after %q: the index returns %v records and %v that the page has not, want %v", tc.prefix, tc.after, p.Rows, p.Removed, tc.want)
			}
		})
		if blocks := p.Hit + p.Read; blocks > 30 { // all records fill some hundreds
			t.Errorf("prefix %q after %q: a page touches %d blocks", tc.prefix, tc.after, blocks)
		}
	}
}

// A purge touches as many blocks of a run with 20,000 events and records as of one with ten.
func TestPurgeCostsTheSameForEveryRun(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := session(t, address, s)
	cost := func(id runstore.RunID, n int) int {
		purgeable(t, s, conn, id, n)
		exec(t, conn, `VACUUM ANALYZE`)
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		sql, args := postgres.StatementOf(s, b)
		p := explain(t, conn, ", ANALYZE, BUFFERS", sql, args...)
		if _, err := s.GetRun(t.Context(), id); !errors.Is(err, runstore.ErrNotFound) {
			t.Fatalf("the statement was not applied: %v", err)
		}
		return p.Hit + p.Read
	}
	cost("first", 10) // the session reads the function and the catalog
	few, many := cost("small", 10), cost("large", 20_000)
	t.Logf("%d blocks, and %d of the large run", few, many)
	if many > few+100 { // the events alone fill some hundreds
		t.Errorf("a purge touches %d blocks of a run with 20,000 events, %d of one with ten", many, few)
	}
}

// A commit touches as many blocks in a run of 2,000 records, 20,000 events and all the results that it
// keeps as in one that has few, and reads no row that it does not need.
func TestCommitCostsWhatItChanges(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	conn := session(t, address, s)
	cost := func(id runstore.RunID, records, ids, events int) int {
		lease := hold(t, s, id)
		b := appending(lease, "event")
		b.ID = "first"
		b.Put("put", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
		commit(t, s, b)
		exec(t, conn, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
			SELECT no, 1, 0, 0, created, created, 0, int4send(i), 'value' FROM tapestore.runs, generate_series(1, $2::integer) i WHERE id = $1`, []byte(id), records)
		exec(t, conn, `INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
			SELECT no, i, 0, 0, created, 0, 'b'::bytea || int4send(i), '{}' FROM tapestore.runs, generate_series(1, $2::integer) i WHERE id = $1`, []byte(id), ids)
		exec(t, conn, `INSERT INTO tapestore.events (run, seq, position, token, time, kind, owner, data)
			SELECT no, last_seq + i, last_position + i, token, created, 'test', owner, 'data' FROM tapestore.runs, generate_series(1, $2::integer) i WHERE id = $1`, []byte(id), events)
		exec(t, conn, `UPDATE tapestore.runs SET last_seq = last_seq + $2::integer, last_position = last_position + $2::integer WHERE id = $1`, []byte(id), events)
		exec(t, conn, `VACUUM ANALYZE tapestore.records, tapestore.batches, tapestore.events`)
		b = appending(lease, "event")
		b.ID = "second"
		b.Require(runstore.AtVersion("put", 1), runstore.AtVersion("new", 0))
		b.Put("put", []byte("again"))
		b.Put("new", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
		sql, args := postgres.StatementOf(s, b)
		p := explain(t, conn, ", ANALYZE, BUFFERS", sql, args...)
		if run, err := s.GetRun(t.Context(), id); err != nil || run.LastSeq != runstore.Seq(2+events) {
			t.Fatalf("the statement was not applied: %+v, %v", run, err)
		}
		p.each(func(p plan) {
			if p.Relation != "" && p.Relation != "runs" && p.Removed > 0 {
				t.Errorf("%d records: %s of %s reads %v rows that it does not need", records, p.Node, p.Relation, p.Removed)
			}
			if (p.Relation == "batches" || p.Relation == "records") && p.Rows > 2 {
				t.Errorf("%d records: %s of %s reads %v rows, want those of the commit", records, p.Node, p.Relation, p.Rows)
			}
		})
		return p.Hit + p.Read
	}
	few, many := cost("few", 1, 1, 1), cost("many", 2000, 380, 20_000)
	t.Logf("%d blocks, and %d in the large run", few, many)
	if many > few+20 { // an index may have got a level higher
		t.Errorf("a commit touches %d blocks in a run of 2,000 records, %d in one of two", many, few)
	}
}

// TestStatementFiles checks that each file of the folder sql is used and described. A missing file
// fails every test, or this one.
func TestStatementFiles(t *testing.T) {
	t.Parallel()
	for _, fault := range postgres.StatementFaults() {
		t.Error(fault)
	}
}
