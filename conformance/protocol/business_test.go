package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// dying is the store of a process that crashes at one of its calls, either before or after the
// store applies it.
type dying struct {
	runstore.RunStore
	left  int
	makes bool
	dead  bool
}

var errDead = &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("no reply")}

func call[V any](s *dying, do func() (V, error)) (V, error) {
	var none V
	last := s.left == 0
	s.left--
	switch {
	case s.dead || last && !s.makes:
		s.dead = true
		return none, errDead
	case last:
		s.dead = true
		_, _ = do()
		return none, errDead
	default:
		return do()
	}
}

func (s *dying) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return call(s, func() (runstore.Created, error) { return s.RunStore.CreateRun(ctx, spec) })
}

func (s *dying) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return call(s, func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

func (s *dying) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return call(s, func() ([]runstore.Record, error) { return s.RunStore.ReadRecords(ctx, id, q) })
}

// dyingMulti is dying over a MultiCommitter.
type dyingMulti struct {
	*dying
	runstore.MultiCommitter
}

func (s dyingMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return call(s.dying, func() ([]runstore.Committed, error) { return s.MultiCommitter.CommitMulti(ctx, batches) })
}

// TestBusinessKeys crashes creators at each of their calls, and races creators, on each engine: a
// connector and a business key name one effect of all runs (T5).
func TestBusinessKeys(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		multi, atOnce := store.(runstore.MultiCommitter)
		survived := false
		for i := 0; !survived; i++ {
			for _, makes := range []bool{false, true} {
				pair := newPair(t, store, fmt.Sprintf("invoice-%d-%t", i, makes), 2)
				d := &dying{RunStore: store, left: i, makes: makes}
				var s runstore.RunStore = d
				if atOnce {
					s = dyingMulti{d, multi}
				}
				_, err := pair.begin(s, 0)
				survived = !d.dead
				if survived && err != nil {
					t.Errorf("call %d: a creator that lives got %v", i, err)
				}
				pair.settle(fmt.Sprintf("killed at call %d, made: %t", i, makes))
			}
			if i > 6 {
				t.Fatalf("a creator makes more than %d calls", i)
			}
		}
		const creators = 6
		race := newPair(t, store, "race", creators)
		var all sync.WaitGroup
		for i := range creators {
			all.Go(func() {
				if _, err := race.begin(store, i); err != nil {
					t.Errorf("creator %d of a race got %v", i, err)
				}
			})
		}
		all.Wait()
		race.settle("a race")
	})
}

// pair is a connector and a business key, with the runs that use them.
type pair struct {
	t     *testing.T
	store runstore.RunStore
	key   string
	runs  []tape.BeginRunResult
}

func newPair(t *testing.T, store runstore.RunStore, key string, runs int) *pair {
	t.Helper()
	p := &pair{t: t, store: store, key: key}
	for i := range runs {
		r, err := tape.New(store, nil).BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: key, Invocation: fmt.Sprint(i)}, Owner: "driver"})
		if err != nil {
			t.Fatal(err)
		}
		p.runs = append(p.runs, r)
	}
	return p
}

// begin begins the effect in run i, in a process of its own.
func (p *pair) begin(store runstore.RunStore, i int) (tape.Effect, error) {
	return tape.New(store, nil).BeginEffect(p.t.Context(), tape.BeginEffectRequest{
		Run: p.runs[i].ID, CustomKey: "pay", Connector: "bank", BusinessKey: p.key, Fence: p.runs[i].Lease.Fence(),
	})
}

// settle fails the test unless the pair has exactly one effect, which every run gets in reply.
func (p *pair) settle(what string) {
	p.t.Helper()
	var first tape.Effect
	found := 0
	for i := range p.runs {
		i = len(p.runs) - 1 - i // not the one that crashed first
		e, err := p.begin(p.store, i)
		if first.Key == "" {
			first = e
		}
		if err != nil || e != first {
			p.t.Errorf("%s: run %d got %+v, %v, want %+v", what, i, e, err, first)
		}
	}
	for _, run := range p.runs {
		_, there, err := tape.New(p.store, nil).GetEffect(p.t.Context(), run.ID, "pay")
		if err != nil {
			p.t.Fatal(err)
		}
		if there {
			found++
		}
	}
	if found != 1 {
		p.t.Errorf("%s: %d effects, want one", what, found)
	}
}
