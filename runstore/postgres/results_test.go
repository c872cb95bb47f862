package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// The results of writes without an id, which the server keeps for their nonces, do not evict those
// that a caller may ask for again.
func TestIDsOutliveWritesWithoutOne(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{false, true} {
		t.Run(fmt.Sprint("two events at times: ", events), func(t *testing.T) {
			t.Parallel()
			s := open(t, database(t))
			lease := hold(t, s, "run")
			b := appending(lease, "charge")
			b.ID = "charge"
			first := commit(t, s, b)
			for i := range 700 { // two statements write these, or three; at every 128th results are evicted
				if events && i%6 == 1 { // fewer than push out an id
					w := appending(lease, "event", "event")
					w.ID = runstore.BatchID(fmt.Sprint(i))
					commit(t, s, w)
					continue
				}
				if i%3 == 0 {
					w := runstore.NewBatch("run", lease.Fence())
					w.Put("progress", fmt.Append(nil, i))
					commit(t, s, w)
					continue
				}
				renewal := runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}
				renewal.Writes.Put("progress", fmt.Append(nil, i))
				if _, err := s.RenewLease(t.Context(), renewal); err != nil {
					t.Fatal(err)
				}
			}
			if again := commit(t, s, b); !again.Replayed || again.FirstSeq != first.FirstSeq {
				t.Errorf("the batch, repeated: got %+v, want the first result %+v", again, first)
			}
		})
	}
}

// TestEveryFormEvictsResults checks that a commit that brings the results of its run to a multiple of
// 128 evicts in each form of the statement: all but the last 256 and the last 128 that have a name. A batch
// that is alone is sent again for that, as a call of tapestore.write.
func TestEveryFormEvictsResults(t *testing.T) {
	t.Parallel()
	withID := func(l runstore.Lease, id any, data ...string) runstore.Batch {
		b := appending(l, data...)
		b.ID = runstore.BatchID(fmt.Sprint(id))
		return b
	}
	alone := func(batch func(l runstore.Lease) runstore.Batch) func(t *testing.T, s *postgres.Store, w *wire, _ string, leases []runstore.Lease) {
		return func(t *testing.T, s *postgres.Store, w *wire, _ string, leases []runstore.Lease) {
			w.lose(none, "")
			commit(t, s, batch(leases[0]))
		}
	}
	const shared, merged = 2, 8
	for _, tc := range []struct {
		name    string
		results int // before
		runs    int
		sent    int
		do      func(t *testing.T, s *postgres.Store, w *wire, address string, leases []runstore.Lease)
	}{
		{"an event", 511, 1, 2, alone(func(l runstore.Lease) runstore.Batch { return withID(l, "id", "event") })},
		{"two events", 511, 1, 2, alone(func(l runstore.Lease) runstore.Batch { return withID(l, "id", "one", "two") })},
		{"a record", 511, 1, 2, alone(func(l runstore.Lease) runstore.Batch {
			b := runstore.NewBatch(l.Run, l.Fence())
			b.Put("key", nil)
			return b
		})},
		{"an event and a new record", 511, 1, 2, alone(func(l runstore.Lease) runstore.Batch { return usual(l, "id", "key", 0) })},
		{"merged", 512 - merged/2, 1, 1, func(t *testing.T, s *postgres.Store, w *wire, address string, leases []runstore.Lease) {
			errs := grouped(t, s, address, merged, func(i int) error {
				_, err := s.Commit(t.Context(), withID(leases[0], i, "event"))
				return err
			}, func() { w.lose(none, "") })
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		}},
		{"several runs", 511, shared, 1, func(t *testing.T, s *postgres.Store, w *wire, _ string, leases []runstore.Lease) {
			errs := coalesced(t, s, shared, func(i int) error {
				_, err := s.Commit(t.Context(), withID(leases[i], "id", "event"))
				return err
			}, func() { w.lose(none, "") })
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		}},
	} {
		// Of those with a name the last 128 stay, also before the last 256 of all.
		for ids, want := range map[int]int{100: 100 + 256, 400: 256} {
			t.Run(fmt.Sprintf("%s, %d ids", tc.name, ids), func(t *testing.T) {
				t.Parallel()
				address := database(t)
				w := &wire{}
				s, conn := open(t, address, w.through), connect(t, address)
				leases := []runstore.Lease{hold(t, s, "run")}
				for i := 1; i < tc.runs; i++ {
					leases = append(leases, hold(t, s, runstore.RunID(fmt.Sprint("run ", i))))
				}
				exec(t, conn, `INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
					SELECT no, i, 0, 0, created, 0, CASE WHEN i < $2 THEN 'b'::bytea ELSE 'n' END || int8send(i), '{}' FROM tapestore.runs, generate_series(0, $1 - 1) i`, tc.results, ids)
				exec(t, conn, `UPDATE tapestore.runs SET batches = $1`, tc.results)
				tc.do(t, s, w, address, leases)
				if n := len(w.sent()); n != tc.sent {
					t.Errorf("%d statements were sent, want %d", n, tc.sent)
				}
				for _, l := range leases {
					if rows := get[int](t, conn, `SELECT count(*) FROM tapestore.batches WHERE run = (SELECT no FROM tapestore.runs WHERE id = $1)`, []byte(l.Run)); rows != want {
						t.Errorf("%s: %d results, want %d", l.Run, rows, want)
					}
				}
			})
		}
	}
}

// A grant id that comes back once it is no longer recognised is that of a new grant, whose
// release has a result of its own.
func TestReleaseOfAGrantIDThatCameBack(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	hold(t, s, "run")
	taking := func(grant runstore.GrantID) runstore.Lease {
		t.Helper()
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: grant}, Preempt: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		return granted.Lease
	}
	for round := range 2 {
		lease := taking("the same")
		req := runstore.ReleaseRequest{Fence: lease.Fence()}
		req.Writes.Append("released", nil)
		for range 2 {
			done, err := s.ReleaseLease(t.Context(), req)
			if want := runstore.Seq(round + 1); err != nil || done.FirstSeq != want {
				t.Fatalf("round %d: got %+v, error %v; want seq %d", round, done, err, want)
			}
		}
		for i := range runstore.RememberedGrants + 2 {
			taking(runstore.GrantID(fmt.Sprint(round, " ", i)))
		}
	}
}

// The results of acquires, renewals and releases with writes are evicted like those of batches.
func TestResultsOfGrantsAreForgotten(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	hold(t, s, "run")
	for i := range 3 * runstore.RememberedBatches {
		acquire := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}, Preempt: "test"}
		acquire.Writes.Append("acquired", nil)
		granted, err := s.AcquireLease(t.Context(), acquire)
		if err != nil {
			t.Fatal(err)
		}
		renew := runstore.RenewRequest{Fence: granted.Fence(), TTL: time.Minute, ID: runstore.BatchID(fmt.Sprint(i))}
		renew.Writes.Append("renewed", nil)
		if _, err := s.RenewLease(t.Context(), renew); err != nil {
			t.Fatal(err)
		}
		release := runstore.ReleaseRequest{Fence: granted.Fence()}
		release.Writes.Append("released", nil)
		if _, err := s.ReleaseLease(t.Context(), release); err != nil {
			t.Fatal(err)
		}
	}
	const kept = 3 * runstore.RememberedBatches // at least 256 rows, and up to 128 that wait for the next sweep
	if rows := get[int](t, conn, `SELECT count(*) FROM tapestore.batches`); rows < runstore.RememberedBatches || rows > kept {
		t.Errorf("the run keeps %d results, want %d to %d", rows, runstore.RememberedBatches, kept)
	}
}
