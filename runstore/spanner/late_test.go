package spanner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// mail is a commit that its sender gave up while it was on its way.
type mail struct {
	deliver func(ctx context.Context) error
}

// keep has the handle's next commit kept. Meanwhile something else happens.
func (m *mail) keep(tr *trick, between func()) {
	tr.next(func(send func(ctx context.Context) error) error {
		m.deliver = send
		between()
		return status.Error(codes.Unknown, "lost, as the handle sees it")
	})
}

// The first copy of a commit arrives after the repeat that was made: it changes nothing
// any more.
func TestFirstCopyComesLate(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			var m mail
			s := open(t, newDatabase(t, newest), tr.through)
			want, wantShape := unharmed(t, s, c, named(0))
			n := named(1)
			lease := c.before(t, s, n)
			m.keep(&tr, func() {})
			result, err := c.do(t.Context(), s, n, lease)
			if err != nil || m.deliver == nil {
				t.Fatalf("got %v", err)
			}
			if err := m.deliver(sending(t.Context())); err == nil {
				t.Error("the first copy was taken after the second")
			}
			if got := n.unnamed(timeless(t, result)); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
			if got := shape(t, s, n); got != wantShape {
				t.Errorf("stored is\n%s, want\n%s", got, wantShape)
			}
			alike(t, s, named(0), n)
		})
	}
}

// A repeat that is refused says that nothing was written, or ever will be: so it writes
// the run's row, after which the first copy cannot be committed any more.
func TestFirstCopyComesAfterARefusal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		want error
		// between is what makes the repeat be refused.
		between func(t *testing.T, s, other *spanner.Store, lease runstore.Lease)
	}{
		{"a takeover", runstore.ErrFenced, func(t *testing.T, _, other *spanner.Store, _ runstore.Lease) { takeOver(t, other, "run") }},
		{"another event", runstore.ErrConflict, func(t *testing.T, _, other *spanner.Store, _ runstore.Lease) {
			commit(t, other, signal("run", "between"))
		}},
		{"a purge", runstore.ErrNotFound, func(t *testing.T, _, other *spanner.Store, _ runstore.Lease) { commit(t, other, purgeOf("run")) }},
		{"the end of a strict lease", runstore.ErrLeaseExpired, func(t *testing.T, _, other *spanner.Store, lease runstore.Lease) { past(t, other, lease.ExpiresAt) }},
		{"its size", runstore.ErrTooLarge, func(_ *testing.T, s, _ *spanner.Store, _ runstore.Lease) { s.SetMaxMutations(1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var tr trick
			var m mail
			var l ledger
			p := newDatabase(t, newest)
			s, other := open(t, p, l.keep, tr.through), open(t, p)
			spec := runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL}
			if tc.want == runstore.ErrLeaseExpired {
				began := time.Now()
				hold(t, s, "another") // as long as it takes on this machine, many times, fits into the lease
				spec.TTL, spec.Strict = max(2*time.Second, 20*time.Since(began)), true
			}
			lease := holdAs(t, s, "run", spec)
			m.keep(&tr, func() { tc.between(t, s, other, lease) })
			made := l.during(func() {
				b := appending(lease, "zombie")
				b.Require(runstore.AtSeq(1))
				if _, err := s.Commit(t.Context(), b); !errors.Is(err, tc.want) || errors.Is(err, runstore.ErrUnknownOutcome) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
			if m.deliver == nil {
				t.Fatal("there was no commit")
			}
			var methods []string
			for _, one := range made {
				methods = append(methods, one.method)
			}
			if got, want := rpcs(methods...), rpcs(sql, commits, sql, commits); got != want {
				t.Errorf("got the RPCs %s, want %s", got, want)
			}
			// The emulator aborts the first copy anyhow, the service because of what this writes.
			last, _ := made[len(made)-1].request.(*spannerpb.CommitRequest)
			if len(last.GetMutations()) == 0 {
				t.Error("the refusal wrote nothing")
			}
			before := shape(t, other, names{run: "run", second: "none"})
			if err := m.deliver(sending(t.Context())); err == nil {
				t.Error("the first copy was taken after the refusal")
			}
			if after := shape(t, other, names{run: "run", second: "none"}); after != before {
				t.Errorf("the late copy changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// A commit that gets no answer is given up after a while, and the write made again; what
// is delivered then changes nothing.
func TestFirstCopyIsHeld(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		if c.name != "commit" && c.name != "create with lease and writes" && c.name != "purge" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, newest)
			s, impatient := open(t, p), open(t, p, patient)
			began := time.Now()
			want, wantShape := unharmed(t, s, c, named(0))
			took := time.Since(began)
			n := named(1)
			lease := c.before(t, s, n)
			impatient.SetAttemptTimeout(max(2*time.Second, 10*took)) // enough for an attempt that is not held
			held := p.server.Hold(1, p.served(commits))
			defer held.Stop()
			result, err := c.do(t.Context(), impatient, n, lease)
			if err != nil || held.Count() != 1 {
				t.Fatalf("got %v, with %d commits held", err, held.Count())
			}
			if got := n.unnamed(timeless(t, result)); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
			held.Stop()
			commit(t, s, signal(hold(t, s, "other").Run, "a commit behind the late one"))
			if got := shape(t, s, n); got != wantShape {
				t.Errorf("stored is\n%s, want\n%s", got, wantShape)
			}
			alike(t, s, named(0), n)
		})
	}
}

// A new epoch whose commit or answer is lost is begun once.
func TestLostRaise(t *testing.T) {
	t.Parallel()
	var tr trick
	s := open(t, newDatabase(t, newest), tr.through)
	for i, lost := range harms {
		for j, applied := range []bool{true, false} {
			tr.next(func(send func(ctx context.Context) error) error {
				if applied {
					if err := send(sending(t.Context())); err != nil {
						return err
					}
				}
				return lost
			})
			epoch, err := s.RaiseEpoch(t.Context(), "test")
			if want := runstore.Epoch(1 + 2*i + j); err != nil || epoch != want || !tr.played() {
				t.Fatalf("%v, applied %v: got %v, %v, want %v", lost, applied, epoch, err, want)
			}
		}
	}
	if all := epochs(t, s); len(all) != 2*len(harms) {
		t.Errorf("got %d epochs: %+v", len(all), all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tr.next(func(send func(ctx context.Context) error) error {
		err := send(sending(t.Context()))
		cancel()
		return errors.Join(err, ctx.Err())
	})
	if _, err := s.RaiseEpoch(ctx, "test"); !errors.Is(err, runstore.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: got %v, want ErrUnknownOutcome", err)
	}
}
