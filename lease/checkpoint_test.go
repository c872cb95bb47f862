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

// writes appends one event.
func writes(kind string) runstore.Writes {
	var w runstore.Writes
	w.Append(kind, nil)
	return w
}

// kinds returns the kinds of the run's events.
func (f *fixture) kinds() (all []string) {
	f.t.Helper()
	for e, err := range runstore.Journal(context.Background(), f.RunStore, run, 1) {
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, e.Kind)
	}
	return all
}

func (f *fixture) wantKinds(want ...string) {
	f.t.Helper()
	if got := f.kinds(); fmt.Sprint(got) != fmt.Sprint(want) {
		f.t.Errorf("the journal has %v, want %v", got, want)
	}
}

// A checkpoint rides on the next heartbeat, and a later one replaces it before that.
func TestCheckpointRidesOnTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			first := held.Checkpoint(writes("first"))
			second := held.Checkpoint(writes("second"))
			if err := <-first; err != lease.ErrReplaced {
				t.Errorf("first: %v, want ErrReplaced", err)
			}
			began := time.Now()
			if err := <-second; err != nil {
				t.Errorf("second: %v", err)
			}
			if d := time.Since(began); d < 5*time.Second || d > 10*time.Second {
				t.Errorf("applied after %v, want at the first heartbeat", d)
			}
			f.wantKinds("second")
			if err := <-held.Checkpoint(runstore.Writes{}); err != nil {
				t.Errorf("a checkpoint without writes: %v", err)
			}
			last := held.Checkpoint(writes("last"))
			go func() {
				if err := <-last; err != lease.ErrEnded {
					t.Errorf("last: %v, want ErrEnded", err)
				}
			}()
			held.ReleaseWith(writes("end"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.wantKinds("second", "end")
		if n := len(f.renewed()); n != 1 {
			t.Errorf("%d renewals, want 1: a checkpoint costs no request", n)
		}
	})
}

// A checkpoint whose reply was lost is repeated under its id before a later one, and applied once.
func TestCheckpointIsAppliedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			r, err := next()
			if n <= 2 {
				return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrUnknownOutcome}
			}
			return r, err
		}
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			first := held.Checkpoint(writes("first"))
			time.Sleep(10 * time.Second) // the first renewal has been sent
			second := held.Checkpoint(writes("second"))
			if err := errors.Join(<-first, <-second); err != nil {
				t.Error(err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f.wantKinds("first", "second")
	})
}

// The repeat of a renewal with a checkpoint returns the first result and extends nothing, so the
// trust counts from the first request whose outcome was unknown.
func TestRepeatedCheckpointExtendsNoTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			switch n {
			case 1, 2, 3: // the first is applied
				if n == 1 {
					_, _ = next()
				}
				return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrUnknownOutcome}
			case 4: // the repeat is answered
				return next()
			default:
				return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrUnavailable}
			}
		}
		var late time.Duration
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			if err := <-held.Checkpoint(writes("step")); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			now, err := f.Now(t.Context())
			if err != nil {
				t.Error(err)
			}
			late = now.Sub(held.Lease().ExpiresAt)
			return nil
		})
		if !errors.Is(err, lease.ErrExpired) {
			t.Errorf("got %v, want ErrExpired", err)
		}
		if late > -3*time.Second {
			t.Errorf("the work ended %v after the expiry on the store clock, want a margin before it", late)
		}
	})
}

// Work that hands over refused writes again and again keeps its lease, and sends no stream of
// requests: every other renewal carries nothing.
func TestRefusedCheckpointsInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			time.Sleep(10 * time.Millisecond)
			return next()
		}
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			var bad runstore.Writes
			bad.Append("", nil) // an event needs a kind
			for began := time.Now(); ctx.Err() == nil && time.Since(began) < 2*time.Minute; time.Sleep(time.Millisecond) {
				held.Checkpoint(bad)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if n := len(f.renewed()); n < 20 || n > 60 {
			t.Errorf("%d renewals in two minutes, want two for each heartbeat", n)
		}
	})
}

// Writes that the store refuses cost neither the lease nor the next checkpoint.
func TestRefusedCheckpointKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			var bad runstore.Writes
			bad.Append("", nil) // an event needs a kind
			if err := <-held.Checkpoint(bad); !errors.Is(err, runstore.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			if err := <-held.Checkpoint(writes("good")); err != nil {
				t.Error(err)
			}
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		f.wantKinds("good")
		if got := f.renewed(); len(got) < 2 || got[1] != got[0] { // the second may carry the next checkpoint already
			t.Errorf("renewals at %v, want a second one right after the refusal", got)
		}
	})
}

// With the lease its checkpoint is lost: refused where the store says so, of unknown outcome where
// no reply came, also if a repeat was refused: the store may have forgotten the first result.
func TestCheckpointOfALostLease(t *testing.T) {
	for _, test := range []struct {
		name    string
		errs    []error // of the renewals; the last one is that of all further ones
		unknown bool
	}{
		{"fenced", []error{&runstore.FencedError{Presented: 1, Current: 2}}, false},
		{"no progress", []error{runstore.ErrNoProgress}, false},
		{"closed", []error{runstore.ErrClosed}, false},
		{"unavailable, then closed", []error{runstore.ErrUnavailable, runstore.ErrClosed}, false},
		{"no reply", []error{runstore.ErrUnknownOutcome}, true},
		{"no reply, then closed", []error{runstore.ErrUnknownOutcome, runstore.ErrClosed}, true},
		{"no reply, then fenced", []error{runstore.ErrUnknownOutcome, &runstore.FencedError{Presented: 1, Current: 2}}, true},
		{"no reply, then purged", []error{runstore.ErrUnknownOutcome, runstore.ErrNotFound}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(_ context.Context, n int, _ func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: test.errs[min(n, len(test.errs))-1]}
				}
				var carried, waiting, late <-chan error
				err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
					carried = held.Checkpoint(writes("carried"))
					if len(test.errs) == 1 && test.unknown { // the lease is held long enough
						time.Sleep(10 * time.Second)
						waiting = held.Checkpoint(writes("waiting"))
					}
					<-ctx.Done()
					late = held.Checkpoint(writes("late"))
					return nil
				})
				if !errors.Is(err, lease.ErrLost) {
					t.Fatalf("got %v, want ErrLost", err)
				}
				if err := <-carried; !errors.Is(err, lease.ErrLost) || errors.Is(err, runstore.ErrUnknownOutcome) != test.unknown {
					t.Errorf("carried: %v, want ErrLost, of unknown outcome: %t", err, test.unknown)
				}
				if err := <-late; !errors.Is(err, lease.ErrLost) {
					t.Errorf("late: %v, want ErrLost", err)
				}
				if waiting != nil {
					if err := <-waiting; !errors.Is(err, lease.ErrLost) || errors.Is(err, runstore.ErrUnknownOutcome) {
						t.Errorf("waiting: %v, want ErrLost and a definite outcome", err)
					}
				}
			})
		})
	}
}

// Work that stalls loses its lease, with ErrNoProgress as the cause; checkpoints are progress.
func TestStalledWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := request()
		req.MaxStall = 40 * time.Second
		began := time.Now()
		var ended time.Time
		err := f.keeper(nil).Do(t.Context(), req, func(ctx context.Context, held *lease.Held) error {
			for range 12 { // two minutes of progress
				if err := <-held.Checkpoint(writes("step")); err != nil {
					t.Fatal(err)
				}
			}
			<-ctx.Done()
			ended = time.Now()
			if !errors.Is(context.Cause(ctx), runstore.ErrNoProgress) {
				t.Errorf("cause: %v, want ErrNoProgress", context.Cause(ctx))
			}
			return nil
		})
		if !errors.Is(err, runstore.ErrNoProgress) || !errors.Is(err, lease.ErrLost) {
			t.Errorf("got %v, want the loss for want of progress", err)
		}
		if d := ended.Sub(began); d < 12*8*time.Second+30*time.Second {
			t.Errorf("ended after %v: the checkpoints did not count as progress", d)
		}
	})
}

// A checkpoint that may have been applied is no definite refusal when the store finds damage at its
// repeat, or a server does not accept the credentials of the repeat.
func TestDoubtfulCheckpointThatMeetsDamage(t *testing.T) {
	for _, refusal := range []error{&runstore.CorruptError{Run: run, Cause: errors.New("a bad sum")}, runstore.ErrInvalid, runstore.ErrUnsupported} {
		for _, doubtful := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					switch {
					case n == 1 && doubtful:
						_, _ = next()
						return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrUnknownOutcome}
					case n <= 2:
						return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: refusal}
					default:
						return next()
					}
				}
				err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
					err := <-held.Checkpoint(writes("step"))
					if !errors.Is(err, refusal) || errors.Is(err, runstore.ErrUnknownOutcome) != doubtful {
						t.Errorf("got %v, want %v, of unknown outcome: %t", err, refusal, doubtful)
					}
					return <-held.Checkpoint(writes("next"))
				})
				if err != nil {
					t.Errorf("the holder: %v", err)
				}
			})
		}
	}
}

// Work that only waits for the outcome of its checkpoint ends when the lease is lost.
func TestWorkWaitsForItsCheckpoint(t *testing.T) {
	t.Run("until the expiry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				return runstore.Renewed{}, unavailable()
			}
			err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
				return <-held.Checkpoint(writes("step"))
			})
			if !errors.Is(err, lease.ErrExpired) {
				t.Errorf("got %v, want ErrExpired", err)
			}
			f.wantFree()
		})
	})
	t.Run("behind one that is fenced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			sent, waits := make(chan struct{}), make(chan struct{})
			f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				close(sent)
				<-waits
				return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: &runstore.FencedError{Presented: 1, Current: 2}}
			}
			err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
				carried := held.Checkpoint(writes("carried"))
				<-sent
				waiting := held.Checkpoint(writes("waiting"))
				close(waits)
				lost := <-waiting
				if err := <-carried; !errors.Is(err, runstore.ErrFenced) || errors.Is(err, runstore.ErrUnknownOutcome) {
					t.Errorf("carried: %v, want a definite refusal", err)
				}
				return lost
			})
			if !errors.Is(err, runstore.ErrFenced) || !errors.Is(err, lease.ErrLost) || errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got %v, want the loss and a definite refusal", err)
			}
		})
	})
	t.Run("until the lease is handed off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				return runstore.Renewed{}, unavailable()
			}
			held := make(chan struct{})
			go func() {
				<-held
				_, _ = f.keeper(nil).RequestHandoff(t.Context(), successorRequest())
			}()
			err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), func(_ context.Context, h *lease.Held) error {
				close(held)
				err := <-h.Checkpoint(writes("step"))
				if late := <-h.Checkpoint(writes("late")); !errors.Is(late, lease.ErrHandedOff) {
					t.Errorf("late: %v, want ErrHandedOff", late)
				}
				return err
			})
			if !errors.Is(err, lease.ErrHandedOff) {
				t.Errorf("got %v, want ErrHandedOff", err)
			}
			f.wantKinds()
		})
	})
}
