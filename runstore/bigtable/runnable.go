package bigtable

import (
	"context"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// The entry of a run in IndexRunnable has the later of two times: RunnableAt, and the expiry of the
// current grant as granted. So a scan of what is due does not read the runs of live leases, and a
// renewal writes no entry.
//
// It is not simple because the entry and the run's head are two rows, which cannot be written in one
// step, and because a grant and a release must not wait for one row before the other.
//
//  1. The head names the write that placed the run (RunnableRev, RunnableBy). An entry with these is the
//     run's own, at any time between RunnableAt and the expiry of the current grant. Any other entry of
//     the run only leads to the run.
//  2. A commit that sets RunnableAt writes the entry before the head. A grant and the end of a grant
//     write both at the same time, and are acknowledged when both are written. The former entry is
//     deleted after that: until then it leads to the run, and its time is no later than the one that was
//     acknowledged last.
//  3. The repeat of a request that was applied writes the entry again before it is acknowledged, because
//     the first copy may have written only the head.
//  4. An entry that moves is first written at its later time, and then deleted at the earlier one. A
//     scan that reads the entry of a renewed lease moves it to the present expiry. A scan that reads an
//     entry that only leads to the run writes the run's own entry before it deletes that one.
//  5. The end of a grant names another write, even if the run's time stays the same. So entries of a
//     grant that has ended are not the run's own: a scan may have moved one to the expiry, and a
//     suspended scan cannot move a run of a later grant.
//
// An entry that has moved to a later time, or that nothing replaces, is deleted at once: a scan forwards
// finds the run at the later time. A scan backwards reads its range again, forwards (verifier.lookBack).
// An entry that has moved to an earlier time stays for readerGrace.

// runnableFrom returns the time of the run's entry in IndexRunnable, 0 if it has none.
func (h *head) runnableFrom() int64 {
	if h.Runnable == 0 {
		return 0
	}
	return max(h.Runnable, h.RunnableFrom)
}

func (h *head) runnableEntry(id runstore.RunID) indexEntry {
	return indexEntry{index: string(runstore.IndexRunnable), at: h.runnableFrom(), written: h.Created, run: id, rev: h.RunnableRev, nonce: h.RunnableBy}
}

// ownsEntry reports whether p is the run's own entry in IndexRunnable.
func (h *head) ownsEntry(p indexEntry) bool {
	return h.Runnable != 0 && p.rev == h.RunnableRev && p.nonce == h.RunnableBy
}

// placeRunnable adds the run's entry in IndexRunnable to the change, if the change moves it.
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
	if at == from && (at == 0 || !ends && h.Created == was.Created) { // if a grant ends, a scan may have moved the entry to the expiry
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

// writeAlongside begins to write the rows that are written at the same time as the head. The function
// that it returns waits for them.
func (s *engine) writeAlongside(ctx context.Context, e *edit) (wait func() error) {
	if len(e.alongside) == 0 {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.writeAll(ctx, e.alongside) }()
	return func() error { return <-done }
}

// replay returns the edit of a request that was applied before.
func (r *cachedRun) replay() *edit { return &edit{run: r, replay: true} }

// restoreRunnableEntry writes the run's entry in IndexRunnable again before the repeat of a request is
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

// entryMove is an entry of IndexRunnable to write, and the key of one to delete after that.
type entryMove struct {
	to  indexEntry
	old string // or empty
}

// planRepair plans what a scan does about an entry of IndexRunnable whose run is r: move, delete or
// replace it.
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
		return // its write may still be applied
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

// isDuplicate reports whether a run was taken by another entry of the same write, which a scan has moved
// since.
func (v *verifier) isDuplicate(p indexEntry) bool {
	first, taken := v.takenBy[p.run]
	if taken && first.rev == p.rev && first != p {
		return true
	}
	v.takenBy[p.run] = p
	return false
}

// strayEntry is an entry that only leads to its run, and how to replace it by the run's own.
type strayEntry struct {
	entryMove
	met indexEntry
}

// repair carries out what planRepair has planned. It writes entries of runs that a later page of the
// scan has to find before it returns, and leaves the rest to the background.
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
	garbage := rowsOf(v.observed, v.dead)
	for _, m := range v.moves {
		garbage = append(garbage, garbageRow{observation: v.observed, key: m.old, to: m.to.rowKey()})
	}
	v.store.garbage.deleteSoon(garbage)
	return nil
}

// lookBack reads the range of a scan backwards through IndexRunnable once more, forwards: a run whose
// entry has moved to a later time, which the scan has passed, has no entry at the earlier time any more.
func (v *verifier) lookBack(ctx context.Context) error {
	if !v.query.Newest || v.query.Index != runstore.IndexRunnable {
		return nil
	}
	low := v.low
	if v.unverified || v.horizon != "" {
		low = v.verifiedTo
	}
	if v.full() { // entries behind the last one belong to the next page
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
