package postgres_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// heldWrites are the statements that are made under a fence.
var heldWrites = []struct {
	name string
	do   func(t testing.TB, s *postgres.Store, l runstore.Lease) error
}{
	{"append one", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		_, err := s.Commit(t.Context(), appending(l, "zombie"))
		return err
	}},
	{"append many", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		_, err := s.Commit(t.Context(), appending(l, "zombie", "zombie", "zombie"))
		return err
	}},
	{"commit a record", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		b := appending(l, "zombie")
		b.Put("key", []byte("zombie"), runstore.Place{Index: "queue", At: runstore.After(0)})
		_, err := s.Commit(t.Context(), b)
		return err
	}},
	{"commit with an id", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		b := appending(l, "zombie")
		b.ID = "batch"
		_, err := s.Commit(t.Context(), b)
		return err
	}},
	{"commit of two runs", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		other := runstore.NewBatch("other", runstore.Unguarded("test"))
		other.Append("test", []byte("zombie"))
		_, err := s.CommitMulti(t.Context(), []runstore.Batch{other, appending(l, "zombie")})
		return err
	}},
	{"purge", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		b := runstore.NewBatch(l.Run, l.Fence())
		b.Purge = true
		_, err := s.Commit(t.Context(), b)
		return err
	}},
	{"renew", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
		return err
	}},
	{"handoff", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		req := runstore.AcquireRequest{
			Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: time.Minute}, Guards: []runstore.Guard{l.Fence()},
		}
		req.Writes.Append("test", []byte("zombie"))
		_, err := s.AcquireLease(t.Context(), req)
		return err
	}},
	{"release", func(t testing.TB, s *postgres.Store, l runstore.Lease) error {
		_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()})
		return err
	}},
}

// A write that is in flight while another holder takes the lease is refused, and its error names
// the new holder: it waits for the row that the takeover has changed, and checks its fence on the
// new row.
func TestInFlightWriteLoses(t *testing.T) {
	t.Parallel()
	for _, tc := range heldWrites {
		for _, mode := range []string{"extended", "simple"} {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				address := database(t)
				params := []string{"pool_max_conns=2"}
				if mode == "simple" {
					params = append(params, "default_query_exec_mode=simple_protocol")
				}
				s := open(t, with(address, params...))
				lease := hold(t, s, "run")
				if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
					t.Fatal(err)
				}
				commit(t, s, appending(lease, "before"))

				other := connect(t, address)
				exec(t, other, "BEGIN")
				exec(t, other, `UPDATE tapestore.runs SET token = token + 1, grant_id = 'new grant', owner = 'new owner',
					expires = clock_timestamp() + interval '1 minute' WHERE id = 'run'`)
				refusal := make(chan error, 1)
				go func() { refusal <- tc.do(t, s, lease) }()
				awaitLocked(t, address, 1)
				exec(t, other, "COMMIT")
				before := stored(t, other)

				err := <-refusal
				var fenced *runstore.FencedError
				if !errors.As(err, &fenced) {
					t.Fatalf("got %v, want a FencedError", err)
				}
				if fenced.Presented != lease.Token || fenced.Current != lease.Token+1 || fenced.Holder.Token != lease.Token+1 || fenced.Holder.Owner != "new owner" {
					t.Errorf("got %+v, want token %d of the new owner", *fenced, lease.Token+1)
				}
				if after := stored(t, other); after != before {
					t.Errorf("the refused write changed\n%s\nto\n%s", before, after)
				}
			})
		}
	}
}

// A strict lease that ends while its holder's write waits for the row is over: the
// clock that judges it is read after the wait.
func TestStrictLeaseEndsDuringTheWait(t *testing.T) {
	t.Parallel()
	for _, tc := range heldWrites {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, address)
			created, err := s.CreateRun(t.Context(), runstore.RunSpec{
				ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Strict: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
				t.Fatal(err)
			}
			other := connect(t, address)
			exec(t, other, "BEGIN")
			exec(t, other, `SELECT FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
			refusal := make(chan error, 1)
			go func() { refusal <- tc.do(t, s, created.Lease) }()
			awaitLocked(t, address, 1)
			// As if it had waited for that long: its own start was before the expiry.
			exec(t, other, `UPDATE tapestore.runs SET expires = clock_timestamp() WHERE id = 'run'`)
			exec(t, other, "COMMIT")
			if err := <-refusal; !errors.Is(err, runstore.ErrLeaseExpired) {
				t.Errorf("got %v, want ErrLeaseExpired", err)
			}
		})
	}
}

// TestStrictLeaseEndsDuringTheWaitForALock is that where the other transaction leaves the
// row as it was: PostgreSQL does not evaluate a condition again then. The handle knows from its grant that
// the lease is strict, which gives its appends their own form. Another handle's first append has the usual one.
func TestStrictLeaseEndsDuringTheWaitForALock(t *testing.T) {
	t.Parallel()
	for i, tc := range slices.Concat(heldWrites, heldWrites[:4]) { // the commits under a fence once more
		by := "the handle of the grant"
		if i >= len(heldWrites) {
			by = "another handle"
		}
		t.Run(tc.name+" by "+by, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, address)
			writer := s
			if i >= len(heldWrites) {
				writer = open(t, address)
			}
			for _, id := range []runstore.RunID{"run", "other"} {
				if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
					t.Fatal(err)
				}
			}
			other := connect(t, address)
			for ttl := time.Second; ; ttl *= 2 {
				lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
					Run: "run", Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "holder", TTL: ttl, Strict: true},
				})
				if err != nil {
					t.Fatal(err)
				}
				exec(t, other, "BEGIN")
				exec(t, other, `SELECT FROM tapestore.runs WHERE id = 'run' FOR NO KEY UPDATE`)
				refusal := make(chan error, 1)
				go func() { refusal <- tc.do(t, writer, lease.Lease) }()
				awaitLocked(t, address, 1)
				now, err := s.Now(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				late := !now.Before(lease.ExpiresAt) // the machine is busy: it may have been refused at once
				for now.Before(lease.ExpiresAt) {
					if now, err = s.Now(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				exec(t, other, "COMMIT")
				if err := <-refusal; !errors.Is(err, runstore.ErrLeaseExpired) {
					t.Errorf("got %v, want ErrLeaseExpired", err)
				}
				if !late || ttl > time.Minute {
					return
				}
			}
		})
	}
}

// Contenders that wait for a row are judged by what the one before them left.
func TestAcquireWaitsForATakeover(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, `UPDATE tapestore.runs SET token = token + 1, grant_state = 1, grant_id = 'new grant', owner = 'new owner',
		expires = clock_timestamp() + interval '1 minute' WHERE id = 'run'`)
	refusal := make(chan error, 1)
	go func() {
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "late", TTL: time.Minute}})
		refusal <- err
	}()
	awaitLocked(t, address, 1)
	exec(t, other, "COMMIT")
	var held *runstore.LeaseHeldError
	if err := <-refusal; !errors.As(err, &held) || held.Holder.Owner != "new owner" || held.Holder.Token != 1 {
		t.Errorf("got %v, want a LeaseHeldError that names the new owner", err)
	}
}

// An append that is on its way while the epoch is raised is refused. A handle that
// was open before, and has not connected anew, puts what it appends under a lease of
// the new epoch above all that the feed had.
func TestInFlightWhileTheEpochIsRaised(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, bystander := open(t, with(address, "pool_max_conns=1")), open(t, with(address, "pool_max_conns=1"))
	old := hold(t, s, "run")
	commit(t, s, appending(old, "before"))
	if _, err := bystander.GetRun(t.Context(), "run"); err != nil {
		t.Fatal(err)
	}
	highest := feed(t, s, 0, 1)[0].Position

	raiser := connect(t, address)
	exec(t, raiser, "BEGIN")
	exec(t, raiser, "LOCK TABLE tapestore.runs IN EXCLUSIVE MODE")
	refusal := make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), appending(old, "zombie"))
		refusal <- err
	}()
	awaitLocked(t, address, 1)
	if epoch := get[int64](t, raiser, `SELECT tapestore.raise_epoch('test', '', 0, false)`); epoch != 1 {
		t.Fatalf("got epoch %d, want 1", epoch)
	}
	exec(t, raiser, "COMMIT")
	var fenced *runstore.FencedError
	if err := <-refusal; !errors.As(err, &fenced) || fenced.Holder != (runstore.Holder{}) {
		t.Errorf("got %v, want ErrFenced without a holder", err)
	}

	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "new", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	if want := runstore.Epoch(1).Floor() + 1; lease.Token != want {
		t.Errorf("got token %d, want %d", lease.Token, want)
	}
	for i, handle := range []*postgres.Store{s, bystander} {
		commit(t, handle, appending(lease.Lease, "after"))
		events := feed(t, s, highest, 1)
		if p := events[0].Position; p <= highest || p <= runstore.Position(runstore.Epoch(1).Floor()) {
			t.Errorf("handle %d: got position %d, want one above %d and the floor %d", i, p, highest, runstore.Epoch(1).Floor())
		}
		highest = events[0].Position
	}
}

// feed waits until n events are in the feed behind a position.
func feed(t testing.TB, s *postgres.Store, after runstore.Position, n int) (events []runstore.FeedEvent) {
	t.Helper()
	await(t, "the feed", func() bool {
		var err error
		if events, err = s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage}); err != nil {
			t.Fatalf("feed: %v", err)
		}
		return len(events) >= n
	})
	return events
}
