package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// lostBlocks is the number of blocks among which a caller chooses after it has lost a race.
const lostBlocks = 4

// Claims claims the due entries of an index that any number of callers share, in any number of
// processes. One read finds the entries, and one commit for each run claims those of the run. Each
// entry is of type E once decoded, and becomes a claim of type C.
//
// Callers that read the same entries race for them. A caller that lost everything pauses, reads
// again and chooses one block at random among the next four blocks of entries. Callers of one turn
// wait for each other instead.
type Claims[E, C any] struct {
	Store runstore.RunStore
	// Query selects the entries, by the store clock unless it has a bound. Its limit is not used.
	Query runstore.IndexQuery
	// Max is the maximal number of entries that one call claims.
	Max int
	// Size, if set, returns a bound of the bytes of a claim. The sum of all but the first is at most
	// MaxSize.
	Size    func(E) int
	MaxSize int
	// Rules decide which entries are claimed. Holder gets the claims, which last until Ends.
	Rules  Rules
	Holder string
	Ends   runstore.When
	// Turns makes the callers in this process that claim from the same index wait for each other.
	Turns *optimistic.Turns[runstore.IndexName]
	// Log receives what a call cannot return.
	Log *slog.Logger
	// Decode returns an entry and its state. An entry with an error is logged and left out.
	Decode func(runstore.IndexEntry) (E, State, error)
	// Write adds the writes that put an entry into its next state, Claimed or Dead; first that of the
	// entry's record. They are committed if no record of the commit's entries has changed.
	Write func(w *runstore.Writes, e E, next State)
	// Claimed returns the claim of an entry: version is that of the record with the claim, and ends
	// the time at which the claim expires.
	Claimed func(e E, next State, version runstore.Version, ends time.Time) C
}

// found is a decoded entry with its next state. The guard holds while its record is as it was read.
type found[E any] struct {
	run       runstore.RunID
	unchanged runstore.Guard
	entry     E
	next      State
}

// Claim claims entries that are due, the longest due first, and returns the claims in no particular
// order. There are fewer than Max, or none, if no more are due or other callers claim them.
//
// If some claims fail and others do not, it returns the latter and logs the error. A lost race is no
// error.
func (c Claims[E, C]) Claim(ctx context.Context) ([]C, error) {
	end, err := c.Turns.Take(ctx, c.Query.Index, "claim")
	if err != nil {
		return nil, err
	}
	defer end()
	blocks := 1
	for n := 0; ; {
		due, err := c.due(ctx, blocks)
		if err != nil || len(due) == 0 {
			return nil, err
		}
		claimed, err := c.commitAll(ctx, due)
		switch {
		case len(claimed) > 0:
			if err != nil && !isLost(err) {
				c.Log.WarnContext(ctx, "a claim ends early", "index", c.Query.Index, "claimed", len(claimed), "error", err)
			}
			return claimed, nil
		case err == nil: // all entries became dead letters
			continue
		case !isLost(err):
			return nil, err
		case n+1 == optimistic.MaxAttempts || optimistic.Rest(ctx, n, err) != nil:
			return nil, nil
		}
		n++
		blocks = lostBlocks
	}
}

// isLost reports whether a commit failed because another caller changed an entry or purged its run.
func isLost(err error) bool {
	return errors.Is(err, runstore.ErrConflict) || errors.Is(err, runstore.ErrNotFound)
}

// due returns up to Max entries that can be claimed. It picks one block of that many entries at
// random among the given number of blocks, and reads no further page once it has an entry.
func (c Claims[E, C]) due(ctx context.Context, blocks int) ([]found[E], error) {
	var due []found[E]
	q, now := c.Query, c.Query.Until
	if now.IsZero() {
		now = runstore.EndOfTime // the store clock has judged what is due
	}
	q.Limit = min(c.Max*blocks, runstore.MaxPage)
	for len(due) == 0 {
		page, err := c.Store.ScanIndex(ctx, q)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		for _, entry := range page {
			e, s, err := c.Decode(entry)
			if err != nil { // do not let one entry hide the others
				c.Log.WarnContext(ctx, "a claim leaves an entry out", "index", q.Index, "run", entry.Run, "record", entry.Record.Key, "error", err)
				continue
			}
			if next, result := c.Rules.Claim(s, now, c.Holder, c.Ends); result == Applied {
				due = append(due, found[E]{entry.Run, runstore.AtVersion(entry.Record.Key, entry.Record.Version), e, next})
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
// that of a failed commit: preferably one of unknown outcome, else one that is not a conflict.
func (c Claims[E, C]) commitAll(ctx context.Context, due []found[E]) (claimed []C, failed error) {
	var runs []runstore.RunID
	byRun := map[runstore.RunID][]found[E]{}
	for _, d := range due {
		if byRun[d.run] == nil {
			runs = append(runs, d.run)
		}
		byRun[d.run] = append(byRun[d.run], d)
	}
	optimistic.Each(runs, func(run runstore.RunID, mu sync.Locker) {
		done, err := c.commit(ctx, run, byRun[run])
		mu.Lock()
		defer mu.Unlock()
		claimed = append(claimed, done...)
		if err != nil && (failed == nil || isLost(failed) || runstore.OutcomeOf(err) == runstore.Unknown) {
			failed = err
		}
	})
	return claimed, failed
}

// commit claims entries of one run, all or none.
func (c Claims[E, C]) commit(ctx context.Context, run runstore.RunID, due []found[E]) ([]C, error) {
	b := runstore.NewBatch(run, due[0].unchanged)
	writes := make([]int, len(due)) // the place of each record among the writes
	for i, d := range due {
		if i > 0 {
			b.Require(d.unchanged)
		}
		writes[i] = len(b.Records)
		c.Write(&b.Writes, d.entry, d.next)
	}
	committed, err := optimistic.Commit(ctx, c.Store, b)
	if err != nil {
		return nil, err
	}
	claimed := make([]C, 0, len(due))
	for i, d := range due {
		if d.next.Phase == Claimed {
			claimed = append(claimed, c.Claimed(d.entry, d.next, committed.Versions[writes[i]], c.Ends.Resolve(committed.Time)))
		}
	}
	return claimed, nil
}
