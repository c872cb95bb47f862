package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// fillers is how many goroutines fill a store: 32, twice the connections of a pool, so that each
// connection has a request waiting.
const fillers = 32

// fillers returns how many goroutines fill a store of the target.
func (s *Session) fillers() int {
	if s.Target.Serial {
		return 1
	}
	return fillers
}

// fill calls do for 0 to n-1 from several goroutines, and starts no call after the budget is spent.
// It returns the number of calls, made: do was called for 0 to made-1. The first error ends it.
func fill(ctx context.Context, budget time.Duration, workers, n int, do func(ctx context.Context, i int) error) (made int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	var mu sync.Mutex
	next := func() (i int, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if made == n || time.Since(began) >= budget || ctx.Err() != nil {
			return 0, false
		}
		made++
		return made - 1, true
	}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i, more := next(); more; i, more = next() {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return made, context.Cause(ctx)
}

// numbered returns a payload that begins with a number, by which a reader identifies it.
func numbered(n, size int) []byte {
	data := bytes.Repeat([]byte{'x'}, max(size, 8))
	binary.BigEndian.PutUint64(data, uint64(n))
	return data
}

// numberOf returns the number of a payload, or -1 if it has none.
func numberOf(data []byte) int {
	if len(data) < 8 {
		return -1
	}
	return int(binary.BigEndian.Uint64(data))
}

// filledJournal is a journal that the benchmark wrote.
type filledJournal struct {
	lease     runstore.Lease
	wanted    int // events that were asked for
	perCommit int
	size      int   // bytes of an event's data
	numbers   []int // of the event at each seq, from seq 1; as acknowledged
}

// fillJournal creates a run and appends n events to it, from several workers under one lease. It
// stops early when the budget is spent.
func fillJournal(ctx context.Context, workers int, s runstore.RunStore, id runstore.RunID, n, perCommit, size int, budget time.Duration) (*filledJournal, error) {
	spec := runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}}
	created, err := s.CreateRun(ctx, spec)
	if err != nil {
		return nil, err
	}
	j := &filledJournal{lease: created.Lease, wanted: n, perCommit: perCommit, size: max(size, 8)}
	firsts := make([]runstore.Seq, (n+perCommit-1)/perCommit) // by commit
	made, err := fill(ctx, budget, workers, len(firsts), func(ctx context.Context, i int) error {
		batch := runstore.NewBatch(id, j.lease.Fence())
		for k := i * perCommit; k < min(n, (i+1)*perCommit); k++ {
			batch.Append("event", numbered(k, size))
		}
		done, err := s.Commit(ctx, batch)
		firsts[i] = done.FirstSeq
		return err
	})
	if err != nil {
		return nil, err
	}
	j.numbers = make([]int, min(n, made*perCommit))
	for i := range j.numbers {
		j.numbers[i] = -1
	}
	for i, first := range firsts[:made] {
		for k := i * perCommit; k < min(n, (i+1)*perCommit); k++ {
			at := int(first) + k - i*perCommit - 1
			if at < 0 || at >= len(j.numbers) || j.numbers[at] != -1 {
				return nil, fmt.Errorf("commit %d was acknowledged at seq %d, which is not free in a journal of %d", i, first, len(j.numbers))
			}
			j.numbers[at] = k
		}
	}
	return j, nil
}

// check reports whether e is the event that was acknowledged at want.
func (j *filledJournal) check(e *runstore.Event, want runstore.Seq) error {
	switch {
	case e.Seq != want:
		return fmt.Errorf("seq %d was read where %d belongs", e.Seq, want)
	case int(want) > len(j.numbers):
		return fmt.Errorf("seq %d was read, which was never acknowledged", e.Seq)
	case numberOf(e.Data) != j.numbers[want-1] || len(e.Data) != j.size || e.Kind != "event":
		return fmt.Errorf("seq %d is event %d of %d bytes and kind %q, and was acknowledged as event %d of %d bytes",
			e.Seq, numberOf(e.Data), len(e.Data), e.Kind, j.numbers[want-1], j.size)
	case e.Token != j.lease.Token || e.Owner != j.lease.Owner:
		return fmt.Errorf("seq %d names token %d and owner %q", e.Seq, e.Token, e.Owner)
	}
	return nil
}

// filledRuns are runs that the benchmark created. Run i is runnable from start plus i milliseconds
// on, and has a record at that time in an index of the benchmark's own.
type filledRuns struct {
	start   time.Time
	shared  bool // the store held other runs before
	ids     []runstore.RunID
	created []time.Time // as acknowledged
	live    []bool      // under a lease
}

// readItem is the key of the record that each filled run has in the benchmark's index.
const readItem runstore.RecordKey = "item"

// fillRuns creates up to n runs. Those for which leased returns true get a lease that outlives the
// benchmark: it is granted for the shortest TTL and then renewed for the longest, so that the run's
// index entry is still where the grant placed it.
func fillRuns(ctx context.Context, workers int, store Store, s runstore.RunStore, n int, leased func(i int) bool, size int, budget time.Duration) (*filledRuns, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	before, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime, Limit: 1})
	if err != nil {
		return nil, err
	}
	f := &filledRuns{
		start: now.Add(-2 * time.Hour), shared: len(before) > 0, // 10^6 ms are 17 minutes
		ids: make([]runstore.RunID, n), created: make([]time.Time, n), live: make([]bool, n),
	}
	made, err := fill(ctx, budget, workers, n, func(ctx context.Context, i int) error {
		f.ids[i], f.live[i] = store.RunID(i), leased(i)
		spec := runstore.RunSpec{ID: f.ids[i], Runnable: runstore.At(f.at(i))}
		if f.live[i] {
			spec.Lease = &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MinTTL}
		}
		spec.Writes.Put(runstore.SummaryKey, numbered(i, size))
		spec.Writes.Put(readItem, numbered(i, size), runstore.Place{Index: f.index(store), At: runstore.At(f.at(i))})
		created, err := s.CreateRun(ctx, spec)
		if err == nil && !created.New {
			err = fmt.Errorf("run %s exists", f.ids[i])
		}
		f.created[i] = created.Run.CreatedAt
		if err == nil && f.live[i] {
			_, err = s.RenewLease(ctx, runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: runstore.MaxTTL})
		}
		return err
	})
	f.ids, f.created, f.live = f.ids[:made], f.created[:made], f.live[:made]
	return f, err
}

// at returns the time of run i in the indexes.
func (f *filledRuns) at(i int) time.Time { return f.start.Add(time.Duration(i) * time.Millisecond) }

// index returns the name of the benchmark's own index.
func (f *filledRuns) index(store Store) runstore.IndexName {
	return runstore.IndexName(store.Prefix + " items")
}

// journalID returns the id of the i-th run with a journal, distinct from those of fillRuns.
func journalID(store Store, i int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("%s-journal-%d", store.Prefix, i))
}
