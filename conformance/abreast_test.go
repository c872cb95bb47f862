package conformance_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// stalls is a network whose first cut delays the reply to the next commit until release is closed.
type stalls struct {
	conformance.Faults
	stalled, release chan struct{}

	mu     sync.Mutex
	cut    bool
	behind int // commits since the one that waits for its reply; -1 before
}

func (s *stalls) Reset() {}

func (s *stalls) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
}

// reply waits if a commit is the first after the cut, and counts it if it is later. Each reply takes
// ten microseconds of the bubble's time, which would otherwise stand still.
func (s *stalls) reply() {
	s.mu.Lock()
	first := s.cut && s.behind < 0
	if first {
		s.behind = 0
		close(s.stalled)
	} else if s.behind >= 0 {
		s.behind++
	}
	s.mu.Unlock()
	if first {
		<-s.release
	}
	time.Sleep(10 * time.Microsecond)
}

type stallingStore struct {
	runstore.RunStore
	*stalls
}

func (s stallingStore) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := s.RunStore.Commit(ctx, b)
	s.reply()
	return done, err
}

// TestNoWriterOutrunsTheMemoryOfAStore checks that in a case that cuts connections, fewer commits
// follow a commit without a reply than a store has to remember.
func TestNoWriterOutrunsTheMemoryOfAStore(t *testing.T) {
	t.Parallel()
	c, ok := conformance.Find("I8/a-cut-connection-is-no-error-the-caller-must-know")
	if !ok {
		t.Fatal("no such case")
	}
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		s := &stalls{stalled: make(chan struct{}), release: make(chan struct{}), behind: -1}
		h := conformance.Harness{New: func(conformance.T) conformance.Instance {
			return conformance.Instance{
				Open: func(context.Context) (runstore.RunStore, error) { return store.Open(), nil },
				Network: func(conformance.T) conformance.Network {
					return conformance.Network{
						Open:   func(context.Context) (runstore.RunStore, error) { return stallingStore{store.Open(), s}, nil },
						Faults: s,
					}
				},
			}
		}}
		result := make(chan conformance.Result, 1)
		go func() { result <- conformance.RunCase(t.Context(), h, c) }()
		<-s.stalled
		time.Sleep(time.Second) // of the bubble: time for many more commits
		synctest.Wait()
		if s.behind == 0 || s.behind >= runstore.RememberedBatches {
			t.Errorf("%d commits followed one without a reply, want some and fewer than %d", s.behind, runstore.RememberedBatches)
		}
		close(s.release)
		if r := <-result; r.Status != conformance.Passed {
			t.Errorf("the case on a sound store: %s %s", r.Status, r.Reason)
		}
	})
}
