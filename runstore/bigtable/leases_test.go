package bigtable_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The lease of these tests, and how long slow messages of it are held: longer than what its
// expiry may differ by from Bigtable's own stamp. An eighth of the TTL is longer than what it may be early by.
const (
	ttl     = 2 * time.Second
	delayed = 800 * time.Millisecond
)

// passes waits until the store clock has moved on by d.
func passes(t testing.TB, s *bigtable.Store, d time.Duration) {
	t.Helper()
	began := now(t, s)
	await(t, "the store clock", func() bool { return now(t, s).Sub(began) > d })
}

func now(t testing.TB, s *bigtable.Store) time.Time {
	t.Helper()
	at, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func acquire(ctx context.Context, s *bigtable.Store, owner runstore.Owner) (runstore.Lease, error) {
	granted, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: ttl}})
	return granted.Lease, err
}

// contend tries to get the lease until it does, and checks that it is told the truth
// about whose it is, and that the lease is not granted before end.
func contend(t testing.TB, s, clock *bigtable.Store, holder runstore.Lease, end time.Time) {
	t.Helper()
	var next runstore.Lease
	refusals := 0
	await(t, "the end of a lease", func() bool {
		began := time.Now()
		now(t, s) // what the handle knows of the clock is no older than this
		before := now(t, clock)
		lease, err := acquire(t.Context(), s, "next")
		after := now(t, clock)
		travel := time.Since(began)
		var held *runstore.LeaseHeldError
		switch {
		case err == nil:
			next = lease
			return true
		case !errors.As(err, &held):
			t.Fatalf("got %v, want a grant or ErrLeaseHeld", err)
		}
		refusals++
		h := held.Holder
		if h.Owner != holder.Owner || h.Token != holder.Token || h.ExpiresAt.Before(holder.ExpiresAt) {
			t.Errorf("the holder is %+v, and has %+v", h, holder)
		}
		// What a handle knows of the clock may be behind by as long as its reading took.
		if least, most := h.ExpiresAt.Sub(after), h.ExpiresAt.Sub(before)+travel; held.Remaining < least || held.Remaining > most || held.Remaining <= 0 {
			t.Errorf("%v remain, want %v to %v", held.Remaining, least, most)
		}
		return false
	})
	if granted := next.ExpiresAt.Add(-ttl); granted.Before(end) {
		t.Errorf("it was granted at %v, %v before its end", granted, end.Sub(granted))
	}
	if next.Token != holder.Token+1 {
		t.Errorf("it has token %v, want %v", next.Token, holder.Token+1)
	}
	if refusals == 0 {
		t.Log("the lease had ended before the first refusal: this machine is slow")
	}
}

// stamp is when Bigtable itself stamped the last grant or renewal of "run".
func stamp(t testing.TB, table bigtableemulator.TableName) time.Time {
	t.Helper()
	row, err := raw(t, table).ReadRow(t.Context(), bigtable.RunKey("run"))
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for _, item := range row["h"] {
		if item.Column == "h:beat" && item.Timestamp.Time().After(last) {
			last = item.Timestamp.Time()
		}
	}
	if last.IsZero() {
		t.Fatal("it has no stamp")
	}
	return last
}

// A grant or renewal whose request or reply takes long: its holder is not told of an
// expiry later than the true one, and nobody gets the lease before that. Who asks is told
// who has it and for how long.
func TestLeaseOfSlowMessages(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"grant", "renewal"} {
		for name, took := range map[string]time.Duration{"request": delayed, "somewhat slow request": ttl / 8, "reply": delayed} {
			slow := strings.TrimPrefix(name, "somewhat slow ")
			t.Run("the "+name+" of a "+of, func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				var slowly atomic.Bool
				arrived, deliver := make(chan struct{}), make(chan struct{})
				s := openBare(t, table, meddle(func(_ context.Context, send func() error) error {
					if !slowly.CompareAndSwap(true, false) {
						return send()
					}
					if slow == "reply" {
						defer func() { <-deliver }()
						defer close(arrived)
						return send()
					}
					close(arrived)
					<-deliver
					return send()
				}))
				other, clock := openBare(t, table), openBare(t, table)
				if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
					t.Fatal(err)
				}
				var lease runstore.Lease
				var err error
				if of == "renewal" {
					if lease, err = acquire(t.Context(), s, "holder"); err != nil {
						t.Fatal(err)
					}
				}
				slowly.Store(true)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if of == "grant" {
						lease, err = acquire(t.Context(), s, "holder")
					} else {
						var renewed runstore.Renewed
						renewed, err = s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: ttl})
						lease = renewed.Lease
					}
				}()
				<-arrived
				passes(t, clock, took)
				close(deliver)
				<-done
				if err != nil {
					t.Fatal(err)
				}
				end := stamp(t, table).Add(ttl)
				if slow == "reply" { // the expiry that was told is close enough to be the one that counts
					end = lease.ExpiresAt
				}
				if late := lease.ExpiresAt.Sub(stamp(t, table).Add(ttl)); late > 0 {
					t.Errorf("the holder was told of an expiry that is %v too late", late)
				}
				contend(t, other, clock, lease, end)
			})
		}
	}
}

// A contender whose reading of the clock, or whose takeover, is on its way for so long
// that the holder has renewed by then does not get the lease, though it had ended.
func TestHolderRenewsWhileATakeoverIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, method := range []string{clock, swaps} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s := openBare(t, table)
			before := now(t, s) // the other handle's estimates are later, however slow the replies to it are
			other := openBare(t, table)
			lease := expired(t, s, "run")
			held := server(t).Hold(1, served(table, method))
			refusal := make(chan error, 1)
			go func() {
				_, err := acquire(t.Context(), other, "next")
				refusal <- err
			}()
			met(t, held, 1)
			renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL})
			if err != nil {
				t.Fatal(err)
			}
			held.Stop()
			var refused *runstore.LeaseHeldError
			if err := <-refusal; !errors.As(err, &refused) {
				t.Fatalf("got %v, want ErrLeaseHeld", err)
			}
			least, most := renewed.ExpiresAt.Sub(now(t, s)), renewed.ExpiresAt.Sub(before)
			if h := refused.Holder; h.Token != lease.Token || !h.ExpiresAt.Equal(renewed.ExpiresAt) || refused.Remaining < least || refused.Remaining > most {
				t.Errorf("got the holder %+v and %v, want the token %d, the expiry %v and %v to %v",
					h, refused.Remaining, lease.Token, renewed.ExpiresAt, least, most)
			}
			commit(t, s, appending(lease, "after"))
		})
	}
}

// A handle that takes the clock to be an hour ahead takes no lease that is live, and
// tells the truth about it: what is close is asked of Bigtable. One that takes it to be
// an hour behind takes no lease either, until it has read the clock again.
func TestHandlesWithAWrongClock(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, wrong := openBare(t, table), openBare(t, table)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	// Long enough for this part of the test, and shorter than what the clocks are off by.
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "holder", TTL: time.Hour / 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		before := now(t, s)
		now(t, wrong) // or the reading is so old that the handle asks again
		bigtable.Shift(wrong, off, func() {
			var held *runstore.LeaseHeldError
			if _, err := acquire(t.Context(), wrong, "thief"); !errors.As(err, &held) || !held.Holder.ExpiresAt.Equal(lease.ExpiresAt) {
				t.Fatalf("off by %v: got %v, want ErrLeaseHeld until %v", off, err, lease.ExpiresAt)
			}
			if off > 0 && (held.Remaining <= 0 || held.Remaining > lease.ExpiresAt.Sub(before)) {
				t.Errorf("off by %v: %v remain, want up to %v", off, held.Remaining, lease.ExpiresAt.Sub(before))
			}
		})
	}
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	if _, err := acquire(t.Context(), s, "holder"); err != nil {
		t.Fatal(err)
	}
	passes(t, s, ttl)
	now(t, wrong) // or the reading is so old that the handle asks again
	bigtable.Shift(wrong, -time.Hour, func() {
		if _, err := acquire(t.Context(), wrong, "next"); !errors.Is(err, runstore.ErrLeaseHeld) {
			t.Errorf("an hour behind: got %v, want ErrLeaseHeld", err)
		}
		now(t, wrong)
		if _, err := acquire(t.Context(), wrong, "next"); err != nil {
			t.Errorf("after a reading: %v", err)
		}
	})
}
