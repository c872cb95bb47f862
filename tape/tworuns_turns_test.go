package tape_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// Writes at once under one fence do not refuse each other, though by intent a run leads one step at
// a time: those of one process take turns, and those of two start over.
func TestWritesAtOnceUnderOneFence(t *testing.T) {
	t.Parallel()
	for kind, wrap := range twoRunStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := wrap(memory.New(nil).Open())
			tapes := []*tape.Tape{tape.New(s, nil), tape.New(s, nil)}
			fence := begin(t, tapes[0], "i").Lease.Fence()
			const writers = 16
			var all sync.WaitGroup
			for i := range writers {
				all.Go(func() {
					key := tape.ValueKey{Namespace: "n", Key: fmt.Sprint(i)}
					for version := range runstore.Version(3) {
						v, err := tapes[i%len(tapes)].WriteValue(t.Context(), key, "1", "w", version, fence)
						if err != nil || v.Version != version+1 {
							t.Errorf("WriteValue at version %d = version %d, %v", version, v.Version, err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// waiting is a store without commits over two runs, whose commits wait once its gate is set.
type waiting struct {
	runstore.RunStore
	gate    atomic.Pointer[chan struct{}]
	entered chan struct{} // receives a value from each commit that waits
}

func (s *waiting) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if gate := s.gate.Load(); gate != nil {
		s.entered <- struct{}{}
		<-*gate
	}
	return s.RunStore.Commit(ctx, b)
}

// A caller that gives up while its step waits for its turn has written nothing, and its error says so.
func TestAStepIsGivenUpBeforeItsTurn(t *testing.T) {
	t.Parallel()
	s := &waiting{RunStore: memory.New(nil).Open(), entered: make(chan struct{}, 100)}
	tp := tape.New(s, nil)
	fence := begin(t, tp, "i").Lease.Fence()
	first, second := tape.ValueKey{Namespace: "n", Key: "1"}, tape.ValueKey{Namespace: "n", Key: "2"}
	for _, key := range []tape.ValueKey{first, second} {
		if _, err := tp.WriteValue(t.Context(), key, "old", "w", 0, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	gate := make(chan struct{})
	s.gate.Store(&gate)
	done := make(chan error, 1)
	go func() {
		_, err := tp.WriteValue(t.Context(), first, "new", "w", 1, fence)
		done <- err
	}()
	<-s.entered // the first step has its turn
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tp.WriteValue(ctx, second, "new", "w", 1, fence)
	if !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("WriteValue = %v, want one that is unavailable and not applied", err)
	}
	s.gate.Store(nil)
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if v, _, err := tp.GetValue(t.Context(), second); err != nil || v.JSON != "old" {
		t.Errorf("the value is %+v, %v; want the old one", v, err)
	}
}
