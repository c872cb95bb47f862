package bench_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// faulty is a store that acknowledges batches and stores something else.
type faulty struct {
	runstore.RunStore
	mu     sync.Mutex // serializes the commits, so that a fault may span two of them
	number map[runstore.RunID]int
	// commit stores what a faulty store would in place of a batch with the given number in its run,
	// and returns the acknowledgement.
	commit func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error)
	kept   map[runstore.RunID]runstore.Batch // batches that were acknowledged and not yet stored
}

func (s *faulty) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number[b.Run()]++
	return s.commit(ctx, s, s.number[b.Run()], b)
}

// pretend returns the acknowledgement of a batch that follows those of its run, without storing it.
func (s *faulty) pretend(ctx context.Context, b runstore.Batch) (c runstore.Committed, err error) {
	run, err := s.GetRun(ctx, b.Run())
	c.LastSeq = run.LastSeq + runstore.Seq(len(b.Events))
	if len(b.Events) > 0 {
		c.FirstSeq = run.LastSeq + 1
	}
	c.Versions = make([]runstore.Version, len(b.Records))
	return c, err
}

// copied returns a batch under the same fence with other events and records. It copies the data,
// which belongs to the caller once Commit returns.
func copied(b runstore.Batch, events []runstore.NewEvent, records []runstore.RecordWrite) runstore.Batch {
	other := runstore.NewBatch(b.Run(), b.Guards().Fence)
	for _, e := range events {
		other.Append(e.Kind, bytes.Clone(e.Data))
	}
	for _, r := range records {
		r.Value = bytes.Clone(r.Value)
		other.Records = append(other.Records, r)
	}
	return other
}

// shifted returns an acknowledgement whose events are n further back.
func shifted(c runstore.Committed, err error, n int) (runstore.Committed, error) {
	c.FirstSeq, c.LastSeq = c.FirstSeq+runstore.Seq(n), c.LastSeq+runstore.Seq(n)
	return c, err
}

// faultyStores are stores that lose, repeat, swap or change a part of the batches with a number from
// 2 on. The second number is that of settings, at the smoke scale, in which the benchmark must find a
// fault.
var faultyStores = map[string]struct {
	commit func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error)
	faults int
	text   string // of some fault
}{
	"a batch is lost": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		if n == 2 && len(b.Events) > 0 {
			return s.pretend(ctx, b)
		}
		return s.RunStore.Commit(ctx, b)
	}, 8, "events were acknowledged"},
	"records are lost": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		if n != 2 || len(b.Records) == 0 {
			return s.RunStore.Commit(ctx, b)
		}
		want, err := s.pretend(ctx, b)
		if err == nil && len(b.Events) > 0 {
			_, err = s.RunStore.Commit(ctx, copied(b, b.Events, nil))
		}
		return want, err
	}, 3, "of commit"},
	"an event is stored twice": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		if n != 2 || len(b.Events) == 0 {
			return s.RunStore.Commit(ctx, b)
		}
		return s.RunStore.Commit(ctx, copied(b, append(b.Events[:len(b.Events):len(b.Events)], b.Events...), b.Records))
	}, 8, "names the seqs"},
	"a batch is lost and the next one is stored twice": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		switch events := len(b.Events); {
		case events == 0:
		case n == 2:
			s.kept[b.Run()] = b
			return s.pretend(ctx, b)
		case n == 3:
			if _, err := s.RunStore.Commit(ctx, copied(b, b.Events, nil)); err != nil {
				return runstore.Committed{}, err
			}
		}
		return s.RunStore.Commit(ctx, b)
	}, 8, "is not the one that was acknowledged there: it is event 0 of commit 3 of writer 0, not event 0 of commit 2 of writer 0"},
	"two batches are swapped": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		switch events := len(b.Events); {
		case events == 0 || len(b.Records) > 0:
		case n == 2:
			s.kept[b.Run()] = copied(b, b.Events, nil)
			return s.pretend(ctx, b)
		case n == 3:
			done, err := s.RunStore.Commit(ctx, b)
			if err != nil {
				return done, err
			}
			_, err = s.RunStore.Commit(ctx, s.kept[b.Run()])
			return shifted(done, err, events)
		}
		return s.RunStore.Commit(ctx, b)
	}, 6, "is not the one that was acknowledged there"},
	"the events of a batch are swapped": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		if n == 2 && len(b.Events) > 1 {
			b.Events[0], b.Events[1] = b.Events[1], b.Events[0]
		}
		return s.RunStore.Commit(ctx, b)
	}, 1, "it is event 1 of commit 2 of writer 0, not event 0 of commit 2 of writer 0"},
	"data is changed": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		if n == 2 && len(b.Events) > 0 {
			b = copied(b, b.Events, b.Records)
			b.Events[0].Data[50]++
		}
		return s.RunStore.Commit(ctx, b)
	}, 8, "its data has changed"},
	"ids are dropped": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		b.ID = ""
		return s.RunStore.Commit(ctx, b)
	}, 2, "a repeat of an acknowledged batch"},
	"a repeat returns another result": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		done, err := s.RunStore.Commit(ctx, b)
		if done.Replayed {
			return shifted(done, err, 1)
		}
		return done, err
	}, 2, "a repeat of the batch that was acknowledged at seq"},
	"a repeat is stored again": {func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
		done, err := s.RunStore.Commit(ctx, b)
		if done.Replayed {
			_, err = s.RunStore.Commit(ctx, copied(b, b.Events, nil))
		}
		return done, err
	}, 2, "the last seq is"},
}

// TestCommitVerifies measures stores that acknowledge what they do not store: each must cause a
// fault in every setting that it breaks, and no other faults.
func TestCommitVerifies(t *testing.T) {
	t.Parallel()
	for name, test := range faultyStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := memory.New(nil)
			report := measureCommits(t, func() runstore.RunStore {
				return &faulty{RunStore: engine.Open(), commit: test.commit, number: map[runstore.RunID]int{}, kept: map[runstore.RunID]runstore.Batch{}}
			}, nil)
			settings := map[string]bool{}
			for _, f := range report.Faults {
				setting, _, _ := strings.Cut(f.Text, ": ")
				settings[setting] = true
			}
			if len(settings) < test.faults || !strings.Contains(faults(report), test.text) {
				t.Errorf("faults in %d settings, want %d and one that says %q:\n%s", len(settings), test.faults, test.text, faults(report))
			}
		})
	}
}

// TestCommitReadsEveryRun changes an event of the second of four runs.
func TestCommitReadsEveryRun(t *testing.T) {
	t.Parallel()
	const changed = "bench-00000007" // of the runs 6 to 9, of four writers
	engine := memory.New(nil)
	report := measureCommits(t, func() runstore.RunStore {
		return &faulty{RunStore: engine.Open(), number: map[runstore.RunID]int{}, commit: func(ctx context.Context, s *faulty, n int, b runstore.Batch) (runstore.Committed, error) {
			if n == 2 && b.Run() == changed {
				b = copied(b, b.Events, b.Records)
				b.Events[0].Data[20]++
			}
			return s.RunStore.Commit(ctx, b)
		}}
	}, nil)
	if want := "writers, runs of their own, tapestore, 4 writers: reading back: run " + changed; len(report.Faults) != 1 || !strings.Contains(faults(report), want) {
		t.Errorf("no single fault says %q: %s", want, faults(report))
	}
}
