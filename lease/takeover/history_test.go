package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/internal/history"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestHistories lets workers drive a few runs while replies get lost and workers are cut off from the
// store. What they see of each run has to be the history of a lease that changes in one step at a time,
// and in the end every run was driven to its end.
func TestHistories(t *testing.T) {
	for seed := range uint64(effort.Choose(20, 2000)) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { histories(t, rand.New(rand.NewPCG(seed, 2))) })
		}) {
			return
		}
	}
}

func histories(t *testing.T, r *rand.Rand) {
	const workers, runs = 4, 6
	store, log := memory.New(nil).Open(), &history.Log{}
	for i := range runs {
		create(t, store, runstore.RunID(fmt.Sprint("run ", i)), nil)
	}
	var nets []*history.Flaky
	var stops []func()
	for i := range workers {
		net := history.NewFlaky(store, rand.New(rand.NewPCG(r.Uint64(), 0)))
		through := log.Through(i, net)
		mine := &dice{r: rand.New(rand.NewPCG(r.Uint64(), 0))}
		nets = append(nets, net)
		w := worker(t, through, fmt.Sprint("worker ", i), takeover.Options{MaxInFlight: 2})
		stops = append(stops, run(t, func(ctx context.Context, held *lease.Held, head runstore.Run) error {
			return steps(ctx, log, i, through, held, head, mine)
		}, w))
	}
	for range 6 {
		time.Sleep(time.Duration(r.IntN(60)) * time.Second)
		down := nets[r.IntN(workers)]
		down.Cut(true)
		time.Sleep(time.Duration(r.IntN(80)) * time.Second)
		down.Cut(false)
	}
	time.Sleep(10 * time.Minute)
	for _, stop := range stops {
		stop()
	}
	log.Check(t)
	for i := range runs {
		head, err := store.GetRun(t.Context(), runstore.RunID(fmt.Sprint("run ", i)))
		if err != nil || !head.RunnableAt.IsZero() {
			t.Errorf("run %d wants a driver still, at %v: %v", i, head.RunnableAt, err)
		}
	}
}

// dice is a source of chance that pieces of work share.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// steps continues a run where its journal ends, and ends it after five steps.
func steps(ctx context.Context, log *history.Log, client int, store runstore.RunStore, held *lease.Held, head runstore.Run, d *dice) error {
	for seq := head.LastSeq; seq < 5; seq++ {
		log.Trusted(client, held)
		b := runstore.NewBatch(head.ID, held.Fence(), runstore.AtSeq(seq+1))
		b.Append("step", nil)
		sent, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := store.Commit(sent, b)
		if cancel(); err != nil {
			return fmt.Errorf("step %d: %w", seq+1, err)
		}
		select {
		case <-time.After(time.Duration(1+d.n(12)) * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if log.Trusted(client, held); d.n(6) == 0 {
		return errors.New("a fault of the test")
	}
	var last runstore.Writes
	last.Append("done", nil)
	last.Runnable = runstore.Never()
	held.ReleaseWith(last)
	return nil
}
