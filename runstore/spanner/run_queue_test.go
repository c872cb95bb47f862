package spanner_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Writers of one run that share a handle queue in it: none of their transactions is begun
// twice. Without the queue they abort each other. The emulator lets one transaction at a time
// into a database, so the second number says nothing about the service.
func TestWritersOfOneRunQueue(t *testing.T) {
	t.Parallel()
	const writers, each = 16, 2
	attempts := func(wait time.Duration) int64 {
		s := open(t, newDatabase(t, fair), patient)
		s.SetRunQueueWait(wait)
		lease := hold(t, s, "run")
		before := s.Attempts()
		var all sync.WaitGroup
		for writer := range writers {
			all.Go(func() {
				for i := range each {
					if _, err := s.Commit(t.Context(), appending(lease, fmt.Sprint(writer, i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if run, err := s.GetRun(t.Context(), "run"); err != nil || run.LastSeq != writers*each {
			t.Errorf("got %d events, error %v, want %d", run.LastSeq, err, writers*each)
		}
		return s.Attempts() - before
	}
	queued, unqueued := attempts(hang), attempts(0)
	t.Logf("%d commits by %d writers: %d transactions, without the queue %d", writers*each, writers, queued, unqueued)
	if queued != writers*each {
		t.Errorf("%d transactions for %d commits", queued, writers*each)
	}
}

// A write does not wait for ever for one of the same handle that gets no answer; nor does it
// wait for those of other runs.
func TestRunQueueDelaysNoWriteForLong(t *testing.T) {
	t.Parallel()
	for run, wait := range map[runstore.RunID]time.Duration{"run": time.Millisecond, "another": hang} {
		t.Run(string(run), func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, newest)
			s := open(t, p)
			s.SetRunQueueWait(wait)
			hold(t, s, "run")
			hold(t, s, "another")
			held := p.server.Hold(1, p.served(commits))
			defer held.Stop()
			given := make(chan error, 1)
			go func() {
				_, err := s.Commit(t.Context(), signal("run", "held"))
				given <- err
			}()
			met(t, held, 1)
			commit(t, s, signal(run, "meanwhile"))
			held.Stop()
			if err := <-given; err != nil {
				t.Error(err)
			}
			if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(found) != 2 {
				t.Errorf("got %d events, error %v, want both", len(found), err)
			}
		})
	}
}

// Commits over the same runs in different orders do not wait for each other in a circle.
func TestRunQueuesOfSeveralRuns(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t, fair), patient)
	s.SetRunQueueWait(hang)
	hold(t, s, "one")
	hold(t, s, "two")
	var all sync.WaitGroup
	for writer := range 6 {
		batches := []runstore.Batch{signal("one", "event"), signal("two", "event")}
		if writer%2 == 0 {
			batches[0], batches[1] = batches[1], batches[0]
		}
		all.Go(func() {
			if _, err := s.CommitMulti(t.Context(), batches); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
