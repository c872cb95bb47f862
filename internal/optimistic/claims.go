package optimistic

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// commitsInFlight is the number of runs to which one call commits at a time. 16: a claim of many
// shards takes few round trips, and one call leaves connections in a pool for others.
const commitsInFlight = 16

// lostBlocks is the number of blocks among which a caller chooses after it has lost a race.
const lostBlocks = 4

// Claims claims the due entries of a queue that any number of callers share, in any number of
// processes. One read finds the entries, and one commit for each run claims those of the run.
// Each entry is of type E once decoded, and becomes a claim of type C.
//
// Callers that read the same entries race for them. A caller that lost everything pauses, reads
// again and chooses one block at random among the next four blocks of entries.
type Claims[E, C any] struct {
	Store runstore.RunStore
	// Query selects the entries, by the store clock unless it has a bound. Its limit is not used.
	Query runstore.IndexQuery
	// Max is the maximal number of entries that one call claims.
	Max int
	// Decode returns an entry, and whether it can be claimed.
	Decode func(runstore.IndexEntry) (e E, ok bool)
	// Size, if set, returns a bound of the bytes of a claim. The sum of all but the first is at most
	// MaxSize.
	Size    func(E) int
	MaxSize int
	// Commit claims entries of one run, all or none. It may return fewer claims than entries, where
	// it decided otherwise about an entry; the entry must then leave the queue or become due later.
	Commit func(ctx context.Context, run runstore.RunID, entries []E) ([]C, error)
	// Lost reports whether a commit failed because another caller changed an entry.
	Lost func(error) bool
}

// found is a decoded entry with its run.
type found[E any] struct {
	run   runstore.RunID
	entry E
}

// Claim claims entries that are due, the longest due first, and returns the claims in no particular
// order. There are fewer than Max, or none, if no more are due or other callers claim them.
//
// If some claims fail and others do not, it returns both the latter and the error. A lost race is
// no error.
func (c Claims[E, C]) Claim(ctx context.Context) ([]C, error) {
	blocks := 1
	for n := 0; ; {
		due, err := c.due(ctx, blocks)
		if err != nil || len(due) == 0 {
			return nil, err
		}
		claimed, err := c.commitAll(ctx, due)
		lost := err != nil && c.Lost(err)
		switch {
		case len(claimed) > 0 && lost:
			return claimed, nil
		case len(claimed) > 0:
			return claimed, err
		case err == nil: // the commits made no claim of these entries
			continue
		case !lost:
			return nil, err
		case n+1 == MaxAttempts || Rest(ctx, n, err) != nil:
			return nil, nil
		}
		n++
		blocks = lostBlocks
	}
}

// due returns up to Max entries that can be claimed. It picks one block of that many entries at
// random among the given number of blocks, and reads no further page once it has an entry.
func (c Claims[E, C]) due(ctx context.Context, blocks int) ([]found[E], error) {
	var due []found[E]
	q := c.Query
	q.Limit = min(c.Max*blocks, runstore.MaxPage)
	for len(due) == 0 {
		page, err := c.Store.ScanIndex(ctx, q)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		for _, entry := range page {
			if e, ok := c.Decode(entry); ok {
				due = append(due, found[E]{entry.Run, e})
			}
		}
		q.After = page[len(page)-1].Cursor
	}
	if whole := len(due) / c.Max; whole > 1 {
		due = due[rand.N(whole)*c.Max:]
	}
	due = due[:min(len(due), c.Max)]
	if c.Size == nil {
		return due, nil
	}
	size := 0
	for i, d := range due {
		if size += c.Size(d.entry); size > c.MaxSize && i > 0 {
			return due[:i], nil
		}
	}
	return due, nil
}

// commitAll claims entries, those of each run in one commit, and returns the claims. The error is
// that of a failed commit, preferably one that is not a conflict.
func (c Claims[E, C]) commitAll(ctx context.Context, due []found[E]) (claimed []C, failed error) {
	var runs []runstore.RunID
	byRun := map[runstore.RunID][]E{}
	for _, d := range due {
		if byRun[d.run] == nil {
			runs = append(runs, d.run)
		}
		byRun[d.run] = append(byRun[d.run], d.entry)
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, commitsInFlight)
	)
	for _, run := range runs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			done, err := c.Commit(ctx, run, byRun[run])
			mu.Lock()
			defer mu.Unlock()
			claimed = append(claimed, done...)
			if err != nil && (failed == nil || errors.Is(failed, runstore.ErrConflict)) {
				failed = err
			}
		})
	}
	wg.Wait()
	return claimed, failed
}
