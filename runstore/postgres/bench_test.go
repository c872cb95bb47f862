package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// The benchmarks print both sides of each comparison from one run, in turn, on a
// private server that syncs every commit (synchronous_commit and fsync on). Both
// sides have a pgx pool of the same size on it:
//
//	go test -run '^$' -bench . ./runstore/postgres

// rounds is how often the sides of a comparison take turns.
const rounds = 7

// side is one side of a comparison: do performs one operation of client i.
type side struct {
	name string
	do   func(i int) error
}

// compare runs the sides in turn and reports the median of every side's operations
// per second, and the median of the rounds' ratios to the first.
func compare(b *testing.B, clients int, sides ...side) {
	b.Helper()
	rates := make([][]float64, len(sides))
	n := max(clients, b.N/rounds)
	for range rounds {
		for i, s := range sides {
			rates[i] = append(rates[i], rate(b, clients, n, s.do))
		}
	}
	for i, s := range sides {
		b.ReportMetric(median(rates[i]), s.name+"/s")
		if i > 0 {
			ratios := make([]float64, rounds)
			for r := range ratios {
				ratios[r] = rates[0][r] / rates[i][r]
			}
			b.ReportMetric(median(ratios), "of-"+s.name)
		}
	}
	b.ReportMetric(0, "ns/op") // of no meaning: an operation of each side
}

// rate performs n operations with so many clients.
func rate(b *testing.B, clients, n int, do func(i int) error) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

const poolSize = 16

// rig is a store and a raw pool on one database of a durable server.
type rig struct {
	store *postgres.Store
	raw   *pgxpool.Pool
}

func newRig(b *testing.B) *rig {
	b.Helper()
	server, err := postgresemulator.Start(b.Context(), &postgresemulator.Options{Durable: true})
	emulators.Require(b, err)
	b.Cleanup(func() { _ = server.Close() })
	db, err := server.NewDatabase(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	pool := func() *pgxpool.Config {
		config, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			b.Fatal(err)
		}
		config.MaxConns = poolSize
		return config
	}
	r := &rig{}
	if r.store, err = postgres.Open(b.Context(), pool(), nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.store.Close() })
	raw := pool()
	for name, value := range map[string]string{"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"} {
		raw.ConnConfig.RuntimeParams[name] = value // as the store's connections
	}
	if r.raw, err = pgxpool.NewWithConfig(b.Context(), raw); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.raw.Close)
	r.exec(b, `CREATE TABLE hand_runs (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bytea NOT NULL UNIQUE, token bigint NOT NULL,
		grant_id bytea NOT NULL, owner text, seq bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 70)`)
	const events = ` (run bigint NOT NULL, seq bigint NOT NULL, token bigint NOT NULL, time timestamptz NOT NULL,
		kind text NOT NULL, owner text NOT NULL, data bytea NOT NULL, PRIMARY KEY (run, seq))`
	r.exec(b, `CREATE TABLE unfed_events`+events)
	r.exec(b, `CREATE TABLE hand_events`+events)
	r.exec(b, `ALTER TABLE hand_events ADD COLUMN position xid8 NOT NULL DEFAULT pg_current_xact_id()`)
	r.exec(b, `CREATE INDEX ON hand_events (position)`)
	r.exec(b, `CREATE TABLE hand_batches (run bigint NOT NULL, id text NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL, PRIMARY KEY (run, id))`)
	r.exec(b, `CREATE TABLE hand_records (run bigint NOT NULL, version bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL,
		key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (run, key)) WITH (fillfactor = 70)`)
	r.exec(b, `CREATE TABLE bare_events (run bytea NOT NULL, seq bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (run, seq))`)
	return r
}

func (r *rig) exec(b *testing.B, sql string, args ...any) {
	b.Helper()
	if _, err := r.raw.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

// runs creates n runs on both sides and takes their leases.
func (r *rig) runs(b *testing.B, n int) []runstore.Lease {
	b.Helper()
	all := make([]runstore.Lease, n)
	for i := range all {
		id := runstore.RunID(fmt.Sprintf("f47ac10b-58cc-4372-a567-0e02b2c3%04d", i))
		created, err := r.store.CreateRun(b.Context(), runstore.RunSpec{
			ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL},
		})
		if err != nil {
			b.Fatal(err)
		}
		all[i] = created.Lease
		r.exec(b, `INSERT INTO hand_runs (id, token, grant_id, owner, seq, expires) VALUES ($1, 1, $2, 'bench', 0, clock_timestamp() + interval '1 hour')`,
			[]byte(id), []byte(created.Lease.Grant))
	}
	return all
}

var payload = make([]byte, 100)

// fenced commits an event under a fence; fill adds to the batch.
func (r *rig) fenced(b *testing.B, leases []runstore.Lease, fill ...func(batch *runstore.Batch)) func(i int) error {
	return func(i int) error {
		batch := runstore.NewBatch(leases[i].Run, leases[i].Fence())
		batch.Append("bench", payload)
		for _, f := range fill {
			f(&batch)
		}
		_, err := r.store.Commit(b.Context(), batch)
		return err
	}
}

// handWritten returns the best single statement we know of the same guarantees: it locks the run's
// row by its id, token and grant id, and appends an event with the token, owner and time, and with a
// place in a feed of all runs. It may also remember an id, and insert a record that is guarded to
// be new; where these are there already, it fails by their unique index. Without a feed it keeps no
// index of positions: an order of commits over all runs is then not to be had.
//
// It does less than the store: leases are never strict and have no bound on their progress, it has
// no trace by which a lost reply is settled, a refusal gives no reason, results stay for ever, and no
// record has places.
func handWritten(feed, id, record bool) string {
	events := "unfed_events"
	if feed {
		events = "hand_events"
	}
	sql := `WITH r AS (UPDATE hand_runs SET seq = seq + 1 WHERE id = $1 AND token = $2 AND grant_id = $3
		RETURNING no, seq, token, owner, clock_timestamp() AS now)`
	if id {
		sql += `, b AS (INSERT INTO hand_batches (run, seq, time, id) SELECT no, seq, now, $6 FROM r)`
	}
	if record {
		sql += `, p AS (INSERT INTO hand_records (run, version, seq, time, key, value) SELECT no, 1, seq, now, $7, $5 FROM r)`
	}
	return sql + ` INSERT INTO ` + events + ` (run, seq, token, time, kind, owner, data) SELECT no, seq, token, now, $4, owner, $5 FROM r RETURNING seq`
}

// BenchmarkAppend is a fenced commit to runs of their own, against hand-written statements: an
// event; an event and an id; and what package tape commits, an event, an id and a record that is
// guarded to be new. The side "unfed" is the statement without a feed.
func BenchmarkAppend(b *testing.B) {
	var n atomic.Int64
	next := func() string { return fmt.Sprint("a-name-of-some-length-", n.Add(1)) }
	withID := func(batch *runstore.Batch) { batch.ID = runstore.BatchID(next()) }
	withRecord := func(batch *runstore.Batch) {
		key := runstore.RecordKey(next())
		batch.Require(runstore.AtVersion(key, 0))
		batch.Put(key, payload)
	}
	for _, tc := range []struct {
		name string
		fill []func(batch *runstore.Batch)
	}{
		{"event", nil},
		{"id", []func(*runstore.Batch){withID}},
		{"record", []func(*runstore.Batch){withID, withRecord}},
	} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", tc.name, clients), func(b *testing.B) {
				r := newRig(b)
				leases := r.runs(b, clients)
				bare := make([]int64, clients)
				hand := func(feed bool) func(i int) error {
					sql := handWritten(feed, len(tc.fill) > 0, len(tc.fill) > 1)
					return func(i int) error {
						args := []any{[]byte(leases[i].Run), int64(1), []byte(leases[i].Grant), "bench", payload}
						if len(tc.fill) > 0 {
							args = append(args, next())
						}
						if len(tc.fill) > 1 {
							args = append(args, []byte(next()))
						}
						var seq int64
						return r.raw.QueryRow(b.Context(), sql, args...).Scan(&seq)
					}
				}
				compare(b, clients,
					side{"tapestore", r.fenced(b, leases, tc.fill...)},
					side{"hand", hand(true)},
					side{"unfed", hand(false)},
					side{"insert", func(i int) error {
						bare[i]++
						_, err := r.raw.Exec(b.Context(), `INSERT INTO bare_events (run, seq, data) VALUES ($1, $2, $3)`,
							[]byte(leases[i].Run), bare[i], payload)
						return err
					}},
				)
			})
		}
	}
}

// BenchmarkAcquire is 32 contenders for one lease; each releases it at once after acquiring it. The
// other side reads the row and then compares and swaps.
func BenchmarkAcquire(b *testing.B) {
	r := newRig(b)
	id := r.runs(b, 1)[0].Run
	r.exec(b, `UPDATE hand_runs SET owner = NULL WHERE id = $1`, []byte(id))
	var attempts [2]atomic.Int64
	var losers [2]waits
	n, clients := max(64, b.N/rounds), 32
	var wins [2][]float64
	lease, err := r.store.AcquireLease(b.Context(), runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "first", TTL: time.Minute}, Preempt: "benchmark",
	})
	if err == nil {
		_, err = r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	}
	if err != nil {
		b.Fatal(err)
	}
	contenders := []func(ctx context.Context, i int) (won bool, err error){
		func(ctx context.Context, i int) (bool, error) {
			lease, err := r.store.AcquireLease(ctx, runstore.AcquireRequest{
				Run: id, LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i)), TTL: time.Minute},
			})
			if errors.Is(err, runstore.ErrLeaseHeld) {
				return false, nil
			}
			if err == nil {
				_, err = r.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
			}
			return true, err
		},
		func(ctx context.Context, i int) (bool, error) {
			var owner *string
			var token int64
			var expired bool
			err := r.raw.QueryRow(ctx, `SELECT owner, token, expires <= clock_timestamp() FROM hand_runs WHERE id = $1`, []byte(id)).Scan(&owner, &token, &expired)
			if err != nil || (owner != nil && !expired) {
				return false, err
			}
			swapped, err := r.raw.Exec(ctx, `UPDATE hand_runs SET owner = $3, token = token + 1, expires = clock_timestamp() + interval '1 minute'
				WHERE id = $1 AND token = $2`, []byte(id), token, fmt.Sprint(i))
			if err != nil || swapped.RowsAffected() == 0 {
				return false, err
			}
			_, err = r.raw.Exec(ctx, `UPDATE hand_runs SET owner = NULL, token = token + 1 WHERE id = $1 AND token = $2`, []byte(id), token+1)
			return true, err
		},
	}
	for range rounds {
		for k, contend := range contenders {
			wins[k] = append(wins[k], rate(b, clients, n, func(i int) error {
				for {
					began := time.Now()
					won, err := contend(b.Context(), i)
					attempts[k].Add(1)
					if err != nil || won {
						return err
					}
					losers[k].add(time.Since(began))
				}
			}))
		}
	}
	total := float64(n * rounds)
	for k, name := range []string{"tapestore", "read-cas"} {
		b.ReportMetric(median(wins[k]), name+"-wins/s")
		b.ReportMetric(float64(attempts[k].Load())/total, name+"-attempts/win")
		b.ReportMetric(losers[k].median(), name+"-loser-ms")
	}
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = wins[0][i] / wins[1][i]
	}
	b.ReportMetric(median(ratios), "of-read-cas")
	b.ReportMetric(0, "ns/op")
}

// waits collects how long losers waited for their refusals.
type waits struct {
	mu  sync.Mutex
	all []float64
}

func (w *waits) add(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, float64(d.Microseconds())/1000)
}

func (w *waits) median() float64 {
	if len(w.all) == 0 {
		return 0
	}
	return median(w.all)
}

// BenchmarkScan is a page of 100 entries of each index, with 1,000 and with a million runs stored.
// One run of five is runnable, and half of those are under a live lease.
func BenchmarkScan(b *testing.B) {
	r := newRig(b)
	stored := 0
	fill := func(upTo int) {
		r.exec(b, `INSERT INTO tapestore.runs (last_seq, token, version_floor, batches, created, runnable, place, expires, status, grant_state,
				purged, is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
			SELECT 0, 1, 0, 0, clock_timestamp(), CASE WHEN i % 5 = 0 THEN clock_timestamp() END, CASE WHEN i % 5 = 0 THEN clock_timestamp() END, clock_timestamp() + interval '1 hour', 0,
				CASE WHEN i % 10 = 0 THEN 1 ELSE 2 END, false, false, int8send(i), 'g', 'bench', '', '', ''
			FROM generate_series($1::bigint, $2::bigint - 1) i`, stored, upTo)
		r.exec(b, `INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, places, key, value)
			SELECT no, 1, 0, 0, created, created, 1, 'timer', 'x' FROM tapestore.runs WHERE token = 1 AND no > $1`, stored)
		r.exec(b, `INSERT INTO tapestore.places (at, written, run, name, key)
			SELECT created, created, no, 'timers', 'timer' FROM tapestore.runs WHERE no > $1`, stored)
		r.exec(b, `VACUUM ANALYZE`)
		stored = upTo
	}
	scan := func(index runstore.IndexName) func(int) error {
		return func(int) error {
			found, err := r.store.ScanIndex(b.Context(), runstore.IndexQuery{Index: index, Limit: 100})
			if err == nil && len(found) < 100 {
				err = fmt.Errorf("%d entries of %s", len(found), index)
			}
			return err
		}
	}
	indexes := []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable, "timers"}
	times := map[int]map[runstore.IndexName]float64{}
	for _, n := range []int{1_000, 1_000_000} {
		fill(n)
		times[n] = map[runstore.IndexName]float64{}
		for _, index := range indexes {
			var all []float64
			for range rounds {
				all = append(all, 1e6/rate(b, 1, max(20, b.N/rounds), scan(index)))
			}
			times[n][index] = median(all)
			b.ReportMetric(times[n][index], fmt.Sprintf("%s-at-%d-us", index, n))
		}
	}
	for _, index := range indexes {
		b.ReportMetric(times[1_000_000][index]/times[1_000][index], string(index)+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}
