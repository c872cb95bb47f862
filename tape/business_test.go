package tape_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// single hides that a store commits to several runs at once.
type single struct{ runstore.RunStore }

// onBothWays runs a test on a store that commits to several runs at once, and on one that does not.
func onBothWays(t *testing.T, test func(t *testing.T, tp *tape.Tape, s *memory.Handle)) {
	t.Parallel()
	for name, hide := range map[string]bool{"at once": false, "ahead": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			if hide {
				tp = tape.New(single{s}, nil)
			}
			test(t, tp, s)
		})
	}
}

func business(run runstore.RunID, key string) tape.BeginEffectRequest {
	return tape.BeginEffectRequest{Run: run, Tool: "pay", Connector: "bank", BusinessKey: key}
}

func beginEffect(t *testing.T, tp *tape.Tape, req tape.BeginEffectRequest) tape.Effect {
	t.Helper()
	e, err := tp.BeginEffect(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestBusinessKeyNamesOneEffectOfAllRuns(t *testing.T) { // 31
	onBothWays(t, businessKeyNamesOneEffectOfAllRuns)
}

func businessKeyNamesOneEffectOfAllRuns(t *testing.T, tp *tape.Tape, s *memory.Handle) {
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	first := beginEffect(t, tp, business(a.ID, "invoice-1"))
	if first.Run != a.ID || first.Status != tape.EffectPending || first.BusinessKey != "invoice-1" {
		t.Fatalf("first: %+v", first)
	}
	before := historyOf(t, s, b.ID)
	for range 2 {
		if second := beginEffect(t, tp, business(b.ID, "invoice-1")); second != first {
			t.Errorf("in another run: %+v, want %+v", second, first)
		}
		if again := beginEffect(t, tp, business(a.ID, "invoice-1")); again != first {
			t.Errorf("again: %+v, want %+v", again, first)
		}
	}
	if after := historyOf(t, s, b.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("the other run was changed from %+v to %+v", before, after)
	}
	other := business(b.ID, "invoice-1")
	other.Connector = "another bank"
	if e := beginEffect(t, tp, other); e.Run != b.ID {
		t.Errorf("of another connector: %+v, want one of its own", e)
	}
	runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
	if err != nil || len(runs) != 2 {
		t.Errorf("%d runs are listed, %v, want the two", len(runs), err)
	}
}

func TestBusinessKeyIsRefusedToAZombie(t *testing.T) {
	onBothWays(t, businessKeyIsRefusedToAZombie)
}

func businessKeyIsRefusedToAZombie(t *testing.T, tp *tape.Tape, s *memory.Handle) {
	zombie := begin(t, tp, "i")
	begin(t, tp, "i")
	req := business(zombie.ID, "invoice-1")
	req.Fence = zombie.Lease.Fence()
	for range 2 { // unregistered, and registered
		before := historyOf(t, s, zombie.ID)
		if _, err := tp.BeginEffect(t.Context(), req); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("a zombie: %v, want ErrFenced", err)
		}
		if after := historyOf(t, s, zombie.ID); !reflect.DeepEqual(before, after) {
			t.Errorf("the zombie changed %+v to %+v", before, after)
		}
		beginEffect(t, tp, business(begin(t, tp, "another").ID, "invoice-1"))
	}
}

func TestManyRunsAndOneBusinessKey(t *testing.T) {
	onBothWays(t, manyRunsAndOneBusinessKey)
}

func manyRunsAndOneBusinessKey(t *testing.T, tp *tape.Tape, s *memory.Handle) {
	const runs = 16
	effects := make([]tape.Effect, runs)
	var all sync.WaitGroup
	for i := range runs {
		run := begin(t, tp, fmt.Sprint(i)).ID
		all.Go(func() {
			e, err := tp.BeginEffect(t.Context(), business(run, "invoice-1"))
			if err != nil {
				t.Error(err)
			}
			effects[i] = e
		})
	}
	all.Wait()
	for i, e := range effects {
		if e != effects[0] {
			t.Errorf("run %d got %+v, run 0 %+v", i, e, effects[0])
		}
	}
}

func TestBusinessKeyOfAPurgedRun(t *testing.T) {
	onBothWays(t, businessKeyOfAPurgedRun)
}

func businessKeyOfAPurgedRun(t *testing.T, tp *tape.Tape, s *memory.Handle) {
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	beginEffect(t, tp, business(a.ID, "invoice-1"))
	purge := runstore.NewBatch(a.ID, runstore.Unguarded("test"))
	purge.Purge = true
	if _, err := s.Commit(t.Context(), purge); err != nil {
		t.Fatal(err)
	}
	if e := beginEffect(t, tp, business(b.ID, "invoice-1")); e.Run != b.ID {
		t.Errorf("%+v, want a new effect: the first is gone", e)
	}
}

// lossyMulti loses replies of commits to several runs, too.
type lossyMulti struct {
	*lossy
	multi runstore.MultiCommitter
}

func (l lossyMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	done, err := l.multi.CommitMulti(ctx, batches)
	if err != nil {
		return done, err
	}
	return done, l.lose("multi")
}

func TestLostRepliesOfBusinessKeys(t *testing.T) {
	onBothWays(t, lostRepliesOfBusinessKeys)
}

func lostRepliesOfBusinessKeys(t *testing.T, inner *tape.Tape, s *memory.Handle) {
	a, b := begin(t, inner, "a"), begin(t, inner, "b")
	tp := tape.New(&lossy{RunStore: s}, nil)
	if _, multi := inner.Store().(runstore.MultiCommitter); multi {
		tp = tape.New(lossyMulti{&lossy{RunStore: s}, s}, nil)
	}
	first := beginEffect(t, tp, business(a.ID, "k"))
	if first.Run != a.ID || first.Seq != 2 {
		t.Errorf("%+v, want the effect of this run", first)
	}
	if e := beginEffect(t, tp, business(b.ID, "k")); e != first {
		t.Errorf("%+v, want %+v", e, first)
	}
}
