package bigtable

import (
	"context"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// The entry of a runnable run is a row at the later of RunnableAt and the expiry of the current
// grant as granted, so that a scan of what is due does not meet the runs of live leases.
// Renewals touch no row.
//
// It is not simple because the row and the run's head cannot be written in one step, and because
// a grant and a release must not wait for one row before the other.
//
//  1. The head names the write that placed the run (RunnableRev, RunnableBy). A row with these is
//     the run's, wherever it stands between RunnableAt and the expiry of the current grant. Any
//     other row of the run only leads to it.
//  2. A commit that sets RunnableAt writes the row before the head. A grant and the end of a grant
//     write both at once, and are acknowledged when both are written. The row of before is
//     removed after that: until then it leads to the run, and its time is no later than the one
//     that was acknowledged last.
//  3. The repeat of a request that was applied writes the row again before it is acknowledged, since
//     the first copy may have failed between the two.
//  4. A row that moves is written at the later time first, and then removed at the earlier one. A
//     scan that meets the row of a renewed lease moves it to the present expiry, and one that
//     meets a row which only leads to the run writes the run's own before it removes that.
//  5. Rows of a grant that has ended are not the run's, because the end names another write, also
//     where the run's time stays the same: a scan may have moved its row to the expiry, and one that
//     was suspended cannot move a run of a later grant.
//
// A row that moved up, or that nothing replaces, is removed at once: a scan forwards meets the run
// at its later place. A scan backwards reads its range again, forwards (engine.scan). A row that
// moved down stays for placeGrace.

// runnableFrom returns where the head places the run in IndexRunnable, 0 if it does not.
func (h *head) runnableFrom() int64 {
	if h.Runnable == 0 {
		return 0
	}
	return max(h.Runnable, h.RunnableFrom)
}

func (h *head) runnableEntry(id runstore.RunID) indexEntry {
	return indexEntry{index: string(runstore.IndexRunnable), at: h.runnableFrom(), written: h.Created, run: id, rev: h.RunnableRev, nonce: h.RunnableBy}
}

// ownsEntry reports whether p is the run's own row in IndexRunnable.
func (h *head) ownsEntry(p indexEntry) bool {
	return h.Runnable != 0 && p.rev == h.RunnableRev && p.nonce == h.RunnableBy
}

// placeRunnable gives the run its entry in IndexRunnable as the change leaves it.
func (e *edit) placeRunnable() {
	h, was := &e.head, &e.run.head
	from := was.runnableFrom()
	at := from
	switch {
	case h.Runnable == 0:
		at = 0
	case rules.GrantState(h.State) != rules.Current:
		at = h.Runnable
	case e.granted:
		at = max(h.Runnable, h.Expires)
	case h.Runnable != was.Runnable:
		at = max(h.Runnable, h.expiry(e.run.beat))
	}
	if h.RunnableFrom = 0; at > h.Runnable {
		h.RunnableFrom = at
	}
	if at != 0 && (e.granted || h.RunnableFrom != 0 || h.Renewed != was.Renewed) {
		h.requires(formatRunnableEntries)
	}
	ends := rules.GrantState(was.State) == rules.Current && (e.granted || rules.GrantState(h.State) != rules.Current)
	if at == from && (at == 0 || !ends) { // where a grant ends, a scan may have moved the row to its expiry
		return
	}
	if from != 0 {
		old := was.runnableEntry(e.run.id).rowKey()
		if at == 0 || at > from {
			e.obsoleteNow = append(e.obsoleteNow, old)
		} else {
			e.obsolete = append(e.obsolete, old)
		}
	}
	h.RunnableRev, h.RunnableBy = h.Rev, e.nonce
	if at == 0 {
		return
	}
	row := put(h.runnableEntry(e.run.id).rowKey(), "", nil)
	if h.Runnable != was.Runnable || len(e.rows) > 0 {
		e.rows = append(e.rows, row)
	} else {
		e.alongside = append(e.alongside, row)
	}
}

// writeAlongside begins to write the rows that are written together with the head. The function that
// it returns waits for them.
func (s *engine) writeAlongside(ctx context.Context, e *edit) (wait func() error) {
	if len(e.alongside) == 0 {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.writeAll(ctx, e.alongside) }()
	return func() error { return <-done }
}

// replay is the decision of a request that was applied before.
func (r *cachedRun) replay() *edit { return &edit{run: r, replay: true} }

// restoreRunnableEntry writes the run's entry in IndexRunnable again, before the repeat of a request is
// acknowledged.
func (s *engine) restoreRunnableEntry(ctx context.Context, r *cachedRun) error {
	if !r.exists() || r.head.Runnable == 0 || r.head.Format < formatRunnableEntries {
		return nil
	}
	if err := s.writeAll(ctx, []mutation{put(r.head.runnableEntry(r.id).rowKey(), "", nil)}); err != nil {
		return outcome.Unknown(err)
	}
	return nil
}

// entryMove is a row of IndexRunnable to be written, and one to be removed after that.
type entryMove struct {
	to  indexEntry
	old string // or empty
}

// planRepair notes what a scan does about a row of IndexRunnable that it met, whose run is at r.
func (v *verifier) planRepair(p indexEntry, r *row) {
	h := &r.head
	if h.ownsEntry(p) && r.exists() {
		if v.met[p.sortKey()] {
			v.owned[p.run] = true
		}
		to := p
		to.at = h.expiry(r.beat)
		if !h.rules(p.run, r.beat).Runnable(v.query.Until) && to.at > p.at && h.Format >= formatRunnableEntries {
			v.moves = append(v.moves, entryMove{to, p.rowKey()})
		}
		return
	}
	if h.Rev < p.rev {
		return // its write may still be made
	}
	if !r.exists() || h.Runnable == 0 {
		v.dead = append(v.dead, p.rowKey())
		return
	}
	one := entryMove{to: h.runnableEntry(p.run)}
	known, _ := v.store.clock.estimate()
	if one.to.at > p.at || known.Sub(runstore.FromMicros(h.Time)) > readerGrace {
		one.old = p.rowKey()
	}
	v.strays = append(v.strays, strayEntry{one, p})
}

// isDuplicate reports whether a run was taken by another row of the same write, which was moved since.
func (v *verifier) isDuplicate(p indexEntry) bool {
	first, taken := v.takenBy[p.run]
	if taken && first.rev == p.rev && first != p {
		return true
	}
	v.takenBy[p.run] = p
	return false
}

// strayEntry is a row that only led to its run, and what to do about it.
type strayEntry struct {
	entryMove
	met indexEntry
}

// repair sees to the rows that the scan met. The rows of runs that the scan may have to find on a
// later page are written before it returns, the others in the background.
func (v *verifier) repair(ctx context.Context) error {
	var first []mutation
	for _, one := range v.strays {
		switch {
		case v.owned[one.to.run]:
			if one.old != "" {
				v.dead = append(v.dead, one.old)
			}
		case v.before(one.met.sortKey(), one.to.sortKey()):
			first = append(first, put(one.to.rowKey(), "", nil))
			if one.old != "" {
				v.dead = append(v.dead, one.old)
			}
		default:
			v.moves = append(v.moves, one.entryMove)
		}
	}
	if err := v.store.writeAll(ctx, first); err != nil {
		return err
	}
	v.store.garbage.deleteSoon(garbageRows{observation: v.observed, keys: v.dead, moves: v.moves})
	return nil
}

// lookBack reads the range of a scan backwards through IndexRunnable once more, forwards: a run that
// moved to a later place, behind the scan, has no row at its earlier one any more.
func (v *verifier) lookBack(ctx context.Context) error {
	if !v.query.Newest || v.query.Index != runstore.IndexRunnable {
		return nil
	}
	low := v.low
	if v.unverified || v.horizon != "" {
		low = v.verifiedTo
	}
	if v.full() { // what is behind its last entry is of the next page
		low = v.high
		for _, e := range v.entries {
			low = min(low, v.orders[e.Cursor])
		}
	}
	page, err := v.store.readEntries(ctx, ranges(low, v.high), 0, false)
	if err != nil {
		return err
	}
	page = slices.DeleteFunc(page, func(p indexEntry) bool { return v.seen[p.sortKey()] })
	slices.SortFunc(page, v.compare)
	v.query.Limit, v.size = v.query.Limit+len(page), 0
	left, covered := v.unverified, v.verifiedTo
	err = v.verify(ctx, page, low)
	v.unverified, v.verifiedTo = left, covered
	return err
}
