package bigtable_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// TestQueuedWritesEndAtTheRetryTimeout checks that writes of one run that wait for each other in a handle end
// together if Bigtable does not answer, at the retry timeout after the last result, and not one retry timeout after
// another. Each holder of the lock tries for as long as it may.
func TestQueuedWritesEndAtTheRetryTimeout(t *testing.T) {
	t.Parallel()
	const timeout, writers = 10 * time.Second, 12
	for name, answered := range map[string]time.Duration{"no answer": 0, "after an answer": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lock, began := bigtable.NewLock(timeout), time.Now()
				_, unlock, err := lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, writers)
				for range writers {
					go func() {
						left, unlock, err := lock(t.Context())
						if err == nil {
							time.Sleep(left)
							err = outcome.Unknown(context.DeadlineExceeded)
							unlock(err)
						}
						ended <- err
					}()
				}
				synctest.Wait()
				if answered > 0 {
					time.Sleep(answered)
					unlock(nil)
				} else {
					time.Sleep(timeout - time.Second)
					unlock(outcome.Unavailable(context.DeadlineExceeded))
				}
				unsent := 0
				for range writers {
					if err := <-ended; errors.Is(err, bigtable.ErrStalled) && runstore.OutcomeOf(err) == runstore.NotApplied {
						unsent++
					}
				}
				if unsent != writers-1 {
					t.Errorf("%d of %d writes were refused as not sent, want all but one", unsent, writers)
				}
				if took, want := time.Since(began), answered+timeout; took != want {
					t.Errorf("the last write ended after %v, want %v", took, want)
				}
			})
		})
	}
}

// TestQueuedWritesDoNotWaitForAWriteThatGoesOn checks that writes end at the retry timeout although the write before
// them has not ended then.
func TestQueuedWritesDoNotWaitForAWriteThatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, writers = 10 * time.Second, 3
		lock, began := bigtable.NewLock(timeout), time.Now()
		_, unlock, err := lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*timeout, func() { unlock(outcome.Unknown(context.DeadlineExceeded)) })
		ended := make(chan error, writers)
		for range writers {
			go func() {
				_, _, err := lock(t.Context())
				ended <- err
			}()
		}
		for range writers {
			if err := <-ended; !errors.Is(err, bigtable.ErrStalled) || runstore.OutcomeOf(err) != runstore.NotApplied {
				t.Errorf("got %v, want that it was not sent", err)
			}
		}
		if took := time.Since(began); took != timeout {
			t.Errorf("the last write ended after %v, want %v", took, timeout)
		}
	})
}

// TestWritesOfABusyRunWait checks that writes that wait for each other while Bigtable answers are not refused, and go
// one after another in the order in which they began, although most of them wait for longer than the retry timeout.
// Each may then try for all of it.
func TestWritesOfABusyRunWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, writers = 10 * time.Second, 12
		lock := bigtable.NewLock(timeout)
		var order []int
		for i := range writers {
			go func() {
				left, unlock, err := lock(t.Context())
				if err != nil || left != timeout {
					t.Errorf("write %d has %v, %v, want %v", i, left, err, timeout)
					return
				}
				order = append(order, i)
				time.Sleep(timeout - time.Second)
				unlock([]error{nil, runstore.ErrConflict}[i%2])
			}()
			synctest.Wait()
		}
		time.Sleep(writers * timeout)
		if len(order) != writers || !slices.IsSorted(order) {
			t.Errorf("got the writes %v, want %d in order", order, writers)
		}
	})
}

// TestQueuedWriteIsNotSent checks the error of a commit behind another one that gets no reply: not applied. The end of
// the caller's context stays the caller's.
func TestQueuedWriteIsNotSent(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	held := server(t).Hold(1, served(table, swaps))
	defer held.Stop()
	first := make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), appending(lease, "first"))
		first <- err
	}()
	met(t, held, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Commit(ctx, appending(lease, "canceled"))
	fails(t, err, runstore.ErrUnavailable, context.Canceled, runstore.NotApplied)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = s.Commit(ctx, appending(lease, "late"))
	fails(t, err, runstore.ErrUnavailable, context.DeadlineExceeded, runstore.NotApplied)
	bigtable.SetRetryTimeout(s, 50*time.Millisecond)
	_, err = s.Commit(t.Context(), appending(lease, "queued"))
	fails(t, err, runstore.ErrUnavailable, bigtable.ErrStalled, runstore.NotApplied)
	bigtable.SetRetryTimeout(s, hang)
	held.Stop()
	if err := <-first; err != nil {
		t.Errorf("the first commit: %v", err)
	}
	seqs(t, s, 1)
}

// A commit whose turn comes when its retry timeout has passed is not sent: there would be no time for the reply.
func TestCommitWithoutTimeForItsReply(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "first"))
	sent := server(t).Watch(served(table, swaps))
	defer sent.Stop()
	bigtable.SetRetryTimeout(s, -time.Second)
	_, err := s.Commit(t.Context(), appending(lease, "late"))
	fails(t, err, runstore.ErrUnavailable, context.DeadlineExceeded, runstore.NotApplied)
	if n := sent.Count(); n != 0 {
		t.Errorf("%d requests, want none", n)
	}
	bigtable.SetRetryTimeout(s, hang)
	seqs(t, s, 1)
}
