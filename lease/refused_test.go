package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// TestTheWorkLearnsOfTheLossFirst ends a grant between two heartbeats. The work's own write
// is refused, and Hold reports the loss whatever the work makes of that error.
func TestTheWorkLearnsOfTheLossFirst(t *testing.T) {
	unguarded := func(f *fixture, change func(*runstore.Batch)) {
		b := runstore.NewBatch(run, runstore.Unguarded("test"))
		change(&b)
		if _, err := f.Commit(f.t.Context(), b); err != nil {
			f.t.Fatal(err)
		}
	}
	behind := &runstore.OpError{Op: "commit", Run: run, Err: &runstore.StoreBehindError{Field: "token", Presented: 1}}
	for _, c := range []struct {
		name  string
		end   func(f *fixture) error // ends the grant; its error replaces that of the write
		kind  error
		quiet bool // only the write's error shows the loss: the release gets no reply
	}{
		{"takeover", func(f *fixture) error {
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
			return nil
		}, runstore.ErrFenced, false},
		{"takeover, and the store goes away", func(f *fixture) error {
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
			f.release = func(context.Context, int, func() (runstore.Committed, error)) (runstore.Committed, error) {
				return runstore.Committed{}, unavailable()
			}
			return nil
		}, runstore.ErrFenced, true},
		{"taken away", func(f *fixture) error {
			unguarded(f, func(b *runstore.Batch) { b.Release = true })
			return nil
		}, runstore.ErrFenced, false},
		{"strict and expired", func(f *fixture) error {
			f.shared.Advance(time.Hour)
			return nil
		}, runstore.ErrLeaseExpired, false},
		{"purge", func(f *fixture) error {
			unguarded(f, func(b *runstore.Batch) { b.Purge = true })
			return nil
		}, runstore.ErrNotFound, false},
		{"store behind", func(f *fixture) error {
			f.release = func(context.Context, int, func() (runstore.Committed, error)) (runstore.Committed, error) {
				return runstore.Committed{}, behind
			}
			return behind
		}, runstore.ErrStoreBehind, false},
	} {
		for what, pass := range map[string]func(error) error{
			"returned": func(err error) error { return err },
			"wrapped":  func(err error) error { return fmt.Errorf("step 1: %w", err) },
			"joined":   func(err error) error { return errors.Join(errors.New("broken"), err) },
			"kept":     func(error) error { return nil },
		} {
			t.Run(c.name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t)
					req := request()
					req.Strict = c.kind == runstore.ErrLeaseExpired
					var refusal error
					err := f.keeper(nil).Do(t.Context(), req, func(ctx context.Context, held *lease.Held) error {
						var late runstore.Writes
						late.Append("late", nil)
						held.ReleaseWith(late)
						refusal = c.end(f)
						if refusal == nil {
							b := runstore.NewBatch(run, held.Fence())
							b.Append("step", nil)
							_, refusal = f.Commit(ctx, b)
						}
						return pass(refusal)
					})
					if c.quiet && what == "kept" {
						if !errors.Is(err, runstore.ErrUnavailable) || errors.Is(err, lease.ErrLost) {
							t.Errorf("got %v, want ErrUnavailable: nothing tells of the loss", err)
						}
						return
					}
					var lost *lease.LostError
					if !errors.As(err, &lost) || !errors.Is(err, lease.ErrLost) || !errors.Is(err, c.kind) {
						t.Fatalf("got %v, want ErrLost because of %v", err, c.kind)
					}
					if lost.Run != run || lost.Token != 1 {
						t.Errorf("lost %+v, want token 1 of the run", lost)
					}
					if what != "kept" && !errors.Is(err, refusal) {
						t.Errorf("got %v, which leaves out the work's error", err)
					}
					if what != "kept" && len(f.releases) != 0 {
						t.Error("a grant that the store had refused was released")
					}
					if c.kind != runstore.ErrNotFound && f.head().LastSeq != 0 {
						t.Error("the final writes were applied after the loss")
					}
				})
			})
		}
	}
}

// TestRefusalsThatAreNoLoss lets the work return refusals of other grants. Its lease was held
// to the end, and is released with the final writes.
func TestRefusalsThatAreNoLoss(t *testing.T) {
	for name, refuse := range map[string]func(f *fixture, held *lease.Held) error{
		"of another run": func(f *fixture, held *lease.Held) error {
			l := held.Lease()
			l.Run = "another"
			if _, err := f.CreateRun(f.t.Context(), runstore.RunSpec{ID: l.Run, Lease: &runstore.LeaseSpec{Owner: "b", TTL: time.Minute}}); err != nil {
				f.t.Fatal(err)
			}
			_, err := f.Commit(f.t.Context(), runstore.NewBatch(l.Run, l.Fence()))
			return err
		},
		"of another grant of the run": func(f *fixture, held *lease.Held) error {
			l := held.Lease()
			l.Token--
			l.Grant = "former"
			_, err := f.Commit(f.t.Context(), runstore.NewBatch(run, l.Fence()))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.grant(runstore.LeaseSpec{Owner: "before", TTL: time.Minute})
				var refusal error
				err := f.keeper(nil).Hold(t.Context(), f.grant(agent), func(_ context.Context, held *lease.Held) error {
					var last runstore.Writes
					last.Append("last", nil)
					held.ReleaseWith(last)
					refusal = refuse(f, held)
					return refusal
				})
				if refusal == nil || err != refusal {
					t.Errorf("got %v, want the work's own error", err)
				}
				f.wantFree()
				if n := f.head().LastSeq; n != 1 {
					t.Errorf("%d events, want that of the release", n)
				}
			})
		})
	}
}

// TestReleaseOfUnknownOutcome applies a release with writes whose reply is lost. A repeat
// that reaches the store gets the first result, also under the next holder.
func TestReleaseOfUnknownOutcome(t *testing.T) {
	for name, again := range map[string]func(f *fixture, next func() (runstore.Committed, error)) (runstore.Committed, error){
		"the next holder has the lease": func(f *fixture, next func() (runstore.Committed, error)) (runstore.Committed, error) {
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
			return next()
		},
		"the store is away": func(*fixture, func() (runstore.Committed, error)) (runstore.Committed, error) {
			return runstore.Committed{}, unavailable()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.release = func(_ context.Context, n int, next func() (runstore.Committed, error)) (runstore.Committed, error) {
					if n == 1 {
						_, _ = next()
						return runstore.Committed{}, runstore.ErrUnknownOutcome
					}
					return again(f, next)
				}
				err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
					var last runstore.Writes
					last.Append("last", nil)
					held.ReleaseWith(last)
					return nil
				})
				var failed *lease.ReleaseError
				if name == "the next holder has the lease" {
					if err != nil {
						t.Errorf("got %v, want the first result of the release", err)
					}
				} else if !errors.As(err, &failed) || runstore.OutcomeOf(err) != runstore.Unknown || errors.Is(err, lease.ErrLost) {
					t.Errorf("got %v, want a ReleaseError of unknown outcome", err)
				}
				if n := f.head().LastSeq; n != 1 {
					t.Errorf("%d events, want the one of the release, applied once", n)
				}
			})
		})
	}
}
