package bigtable

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// needs are what an operation has to know of its run before it can decide.
type needs struct {
	fresh   bool                 // the head as read by this operation, not as the handle remembers it
	keys    []runstore.RecordKey // the versions of these records
	all     bool                 // the versions of all records
	results bool                 // the results of the last requests with writes and an id
	replays bool                 // the same, but only if the operation reads the run anyway
	events  bool                 // room in the row for events
	strict  bool                 // the write is made under a fence: under a strict lease it must not outlive the lease
	id      bool                 // the request has an id: a copy that an earlier call sent may be under way
	epoch   bool                 // the store's epoch and the run's former grants: for a grant

	// clock reports whether the decision needs the server's clock.
	clock func(r *cachedRun) bool
}

// clockMargin is how far before its expiry a lease is certainly live, by the handle's estimate of Bigtable's
// clock. 2 s: many times the error of an estimate that is not old. A handle that was suspended may take the
// lease for live a little too long, and then grants nothing meanwhile.
const clockMargin = 2 * time.Second

// surelyLive reports whether the lease is certainly live, by the handle's estimate of the clock.
func (s *engine) surelyLive(r *cachedRun) bool { return s.surelyBefore(r.head.expiry(r.beat)) }

// surelyBefore reports whether a time is certainly in the future, by the handle's estimate of the clock.
func (s *engine) surelyBefore(us int64) bool {
	now, age := s.clock.estimate()
	return age < 2*refreshAfter && now.Add(clockMargin).Before(runstore.FromMicros(us))
}

// decideFunc returns the edit that an operation makes of a run as the handle knows it. now is the handle's
// estimate of the store clock (clock.go), or the server's clock if needs.clock asked for it. A nil edit with
// a nil error means that nothing is left to do.
type decideFunc func(r *cachedRun, now time.Time) (*edit, error)

// write performs one operation on one run by compare-and-swap: every change of a run goes through it.
//
//  1. It reads what the operation needs, unless the handle remembers it, and calls f to decide.
//  2. It writes the rows that the change names (edit.rows): values that are too large, index entries, marks.
//  3. It swaps the head. The predicate is the revision that f has decided on.
//  4. If the revision was another one, it reads the run, finds out (isApplied) whether a copy of
//     this change was applied, and if not decides again.
//
// What a handle remembers may be out of date. So write returns an error, or that nothing is left to do, only
// after a read by this operation; a change that was applied proves itself. It returns a refusal that only the
// clock decides, of a request with an id, only after it has given the run another revision (isForTime).
func (s *engine) write(ctx context.Context, id runstore.RunID, n needs, f decideFunc) (applied *edit, err error) {
	r, t, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { s.unlock(r, err) }()
	fresh, ticket, moved := false, newTicket(s.clock.local), false
	var late term // found to have ended by the server's clock
	for {
		if !fresh && (n.fresh || !r.has(n)) {
			if err := s.load(ctx, r, n); err != nil {
				r.forget()
				return nil, err
			}
			fresh = true
		}
		if now := s.currentEpoch(); r.stored != nil && r.head.isOld(now) {
			if err := s.raiseRun(ctx, r, now, t); err != nil {
				r.forget()
				return nil, err
			}
			fresh = false
			continue
		}
		if n.events && r.mustSeal() {
			if err := s.sealNext(ctx, r, t); err != nil {
				return nil, err
			}
			if !r.known { // another handle writes to the run
				fresh = false
				continue
			}
		}
		now, _ := s.clock.estimate()
		var askedAt localclock.Reading
		asked := r.exists() && n.clock != nil && n.clock(r)
		if asked {
			if now, askedAt, err = s.askServerClock(ctx, runKey(id)); err != nil {
				return nil, err
			}
		}
		if len(n.keys) > 0 && r.head.RecordBytes > maxRecordBytes && s.needsMove(r) {
			if err := s.moveNow(ctx, r, t); err != nil {
				return nil, err
			}
			fresh = false
			continue
		}
		e, err := f(r, now)
		if isFull(err) && !moved { // records may have become movable since the last move
			if err := s.moveNow(ctx, r, t); err != nil {
				return nil, err
			}
			fresh, moved = false, r.known // unless another handle wrote first
			continue
		}
		if asked && isForTime(err) && r.term(err) != late {
			// Another handle may have renewed the lease between the read of the run and that of the clock.
			late, fresh = r.term(err), false // it has not if the next read finds the same
			r.forget()
			continue
		}
		if (err != nil || e == nil || e.replay) && !fresh {
			r.forget()
			continue
		}
		var refusal error
		if n.id && isForTime(err) {
			e, refusal, err = r.touch(), err, nil
		}
		if err != nil || e == nil {
			return nil, err
		}
		if e.replay {
			return nil, s.restoreRunnableEntry(ctx, r)
		}
		e.placeRunnable()
		if ticket.mustWait(r.stored, s.ticketTimeout) {
			r.forget()
			if fresh = false; !t.More(ctx) {
				return nil, outcome.Unavailable(outcome.Cause(ctx, errBusy))
			}
			continue
		}
		if asked { // earlier readings are obsolete
			e.m.DeleteTimestampRange(familyClock, columnClock, 0, bigtable.Time(now))
			if n.strict && r.head.Strict && refusal == nil {
				// The lease's rest counts from the request, because the reply may have been long under way.
				e.deadline = askedAt.Add(runstore.FromMicros(r.head.expiry(r.beat)).Sub(now))
			}
		}
		if err := s.writeAll(ctx, e.rows); err != nil {
			s.garbage.deleteOrphans(e.orphans()...) // some of them may have been written
			return nil, err
		}
		waitAlongside := s.writeAlongside(ctx, e)
		swapped, ambiguous, err := s.swap(ctx, r, e, t, ticket)
		entryErr := waitAlongside()
		if err != nil {
			if r.forget(); !e.tried {
				s.garbage.deleteOrphans(e.orphans()...)
			}
			if !errors.Is(err, runstore.ErrLeaseExpired) {
				return nil, err
			}
			// Nothing was sent, because the lease has ended by this head. It may have been renewed since.
			if fresh = false; t.Left() < 0 {
				return nil, outcome.Unavailable(errBusy)
			}
			continue
		}
		orphans := e.orphans()
		if !swapped {
			// The read for the next decision shows which write made the revision. Until then
			// the rows that were written ahead must stay.
			ticket.lostRace(ctx, s, r, n.epoch)
			r.forget()
			if err = s.load(ctx, r, n); err == nil && refusal == nil { // a refusal is decided again
				swapped, err = s.isApplied(ctx, r.id, e, &r.head)
				if err != nil {
					shown := r.results != nil && e.resultShows(&r.head)
					if shown {
						if _, fresh = r.results[e.result.name()]; fresh {
							continue // the decision finds this result, which a later read may not find
						}
					}
					// It is decided again. If neither the journal nor the results show whether it was applied, but the
					// handle sent one copy, it was far behind when it sent that. An unseen repeat would look the same if
					// so many writes came between its copies. So the rows that were written ahead stay as after a crash.
					if shown || !ambiguous && errors.Is(err, errLongAgo) {
						err, orphans = nil, nil
					}
				}
			}
			if err != nil {
				r.forget()
				return nil, outcome.Unknown(err)
			}
		}
		if swapped && entryErr != nil {
			e.obsolete, e.obsoleteNow = nil, nil // the former entry still leads to the run
			s.noteApplied(r, e)
			r.forget()
			return nil, outcome.Unknown(entryErr)
		}
		if swapped {
			s.noteApplied(r, e)
			return e, refusal
		}
		s.garbage.deleteOrphans(orphans...)
		if t.Left() < 0 {
			r.forget()
			return nil, outcome.Unavailable(errBusy)
		}
		if fresh = !ticket.rest(s); !fresh {
			r.forget()
		}
	}
}

// has reports whether the handle remembers what an operation needs.
func (r *cachedRun) has(n needs) bool {
	if !r.known || n.results && r.results == nil || n.all || n.epoch {
		return false
	}
	return !slices.ContainsFunc(n.keys, func(k runstore.RecordKey) bool { return !r.knows(k) })
}

// load reads what an operation needs. It keeps what else the handle remembers if the revision is still the
// same. Cold records are read consistently with the row (withCold): their versions are those of the revision
// that was read, and the write compares that revision.
func (s *engine) load(ctx context.Context, r *cachedRun, n needs) error {
	var filters []bigtable.Filter
	// A caller that puts one record that the handle does not know will put others.
	all := n.all || len(n.keys) > 0 && r.known && r.head.RecordBytes < maxLoaded
	if all {
		filters = append(filters, wholeFamily(familyRecords))
	} else {
		filters = append(filters, recordFilters(n.keys)...)
	}
	if n.results || n.replays {
		filters = append(filters, wholeFamily(familyBatches))
	}
	var absent []runstore.RecordKey // records that may be cold
	for _, k := range n.keys {
		if k != runstore.SummaryKey {
			absent = append(absent, k)
		}
	}
	read := func() (*row, error) { return s.readRun(ctx, r.id, filters...) }
	if n.epoch {
		read = func() (*row, error) { return s.readRunAndEpoch(ctx, r.id, filters...) }
	} else if len(absent) > 0 {
		filters = append(filters, moveListFilter())
	}
	found, list, colds, err := (*row)(nil), (*moveList)(nil), coldPage{}, error(nil)
	if len(absent) == 0 {
		found, err = read()
	} else {
		found, list, colds, err = s.withCold(ctx, r.id, read, func(c *moveList) (coldPage, error) {
			return s.coldKeys(ctx, r.id, c, slices.DeleteFunc(slices.Clone(absent), func(k runstore.RecordKey) bool {
				_, sure := r.fingerprints.find(c.id(), k)
				return sure
			}))
		})
	}
	if err != nil {
		return err
	}
	r.learn(found)
	if n.epoch && found.stored != nil { // a row without a head has cells of a history that the store has lost
		r.former, r.terms = cell(found.cells, familyOther, columnFormer), cell(found.cells, familyOther, columnTerms)
		r.ended = cell(found.cells, familyOther, columnEnded)
	}
	if len(r.records) > maxRecords {
		clear(r.records)
		r.all = false
	}
	r.all = r.all || all
	for _, k := range n.keys {
		r.records[k], _ = r.fingerprints.find(r.head.moveListID(), k)
	}
	for _, one := range colds.rows {
		m := &recordMeta{}
		if _, err := decodeCell(one.cell, m); err != nil {
			return err
		}
		m.coldRev, m.Hides = one.move.rev, 0
		if one.old {
			m.Above = max(m.Above, r.head.Floor)
		}
		r.records[one.key] = m
	}
	for _, item := range found.cells[familyRecords] {
		key := runstore.RecordKey(qualifier(familyRecords, item))
		m := &recordMeta{}
		if _, err := decodeCell(item.Value, m); err != nil {
			return err
		}
		m.size = m.footprint(key, item.Value)
		r.records[key] = m
	}
	s.learnFingerprints(r, list, n.keys)
	if n.results || n.replays {
		r.results = map[string]result{}
		for _, item := range found.cells[familyBatches] {
			var one result
			if err := json.Unmarshal(item.Value, &one); err != nil {
				return corrupt(err)
			}
			r.results[one.name()] = one
		}
	}
	return nil
}

// edit is a change of a run while it is prepared, sent and resolved: one conditional mutation, the rows that
// it names, and the rows that it makes obsolete.
type edit struct {
	run    *cachedRun
	head   head
	stored []byte // the revision's cell
	nonce  uint64
	sent   localclock.Reading
	tried  bool // swap has sent it
	now    int64
	m      *bigtable.Mutation // the change of the row, without the head until swap

	records     map[runstore.RecordKey]*recordMeta // as they are after it
	superseded  bool                               // other writes were applied after it
	purged      bool
	creates     bool
	deadline    localclock.Reading // the end of the strict lease under which it is sent, or zero
	result      *result
	tail        tail
	granted     bool       // it grants the lease
	replay      bool       // the request was applied before
	pinnedBytes int64      // growth of the records that cannot leave the row
	rows        []mutation // written before the head
	alongside   []mutation // written at the same time as the head, see runnable.go
	obsolete    []string   // rows that nothing names after the change; scans under way may still need them
	obsoleteNow []string   // rows that nothing names after the change, and no scan needs
	done        runstore.Committed
}

// orphans returns the rows that no head names if the change is never applied. Their keys contain its nonce.
func (e *edit) orphans() (keys []string) {
	for _, m := range append(e.rows[:len(e.rows):len(e.rows)], e.alongside...) {
		if m.key[:1] != kindSegment { // other handles may have written the same
			keys = append(keys, m.key)
		}
	}
	return keys
}

// newEdit returns a change that gives the run its next revision, and changes nothing else yet.
func newEdit(r *cachedRun, now time.Time) *edit {
	e := &edit{run: r, head: r.head, nonce: rand.Uint64(), m: bigtable.NewMutation(), tail: r.tail}
	e.head.addRevision(e.nonce)
	e.now = max(r.head.Time, runstore.Micros(now.Truncate(runstore.TimePrecision)))
	e.head.Time = e.now
	return e
}

// time returns the time of the change.
func (e *edit) time() time.Time { return runstore.FromMicros(e.now) }

// stampBeat adds the cell to which Bigtable gives the time of a grant or a renewal.
func (e *edit) stampBeat() {
	e.m.DeleteCellsInColumn(familyHead, columnBeat)
	e.m.Set(familyHead, columnBeat, bigtable.ServerTime, e.head.beatValue())
}

// grant adds a grant, the writes of its request, and the result of both.
func (e *edit) grant(before rules.Head, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted := before.Granted(req, e.time())
	e.head.grant(granted)
	e.granted = true
	if len(granted.Former) > 0 {
		e.set(familyOther, columnFormer, granted.Former)
	}
	if len(granted.Terms) > 0 {
		e.set(familyOther, columnTerms, granted.Terms)
	}
	e.stampBeat()
	applied := runstore.Granted{Lease: granted.Lease(req.TTL), Former: granted.Holder.Former}
	name := rules.GrantResult(req.Grant)
	if req.Writes.IsZero() {
		name = ""
	}
	err := e.apply(req.Writes, applied.Token, applied.Owner, false, name, result{Token: int64(applied.Token), Former: int(applied.Former)})
	applied.Committed = e.done
	return applied, err
}

// swap sends the conditional mutation that replaces the revision that the change was decided on. It reports
// whether the predicate matched, and ambiguous if it sent more than one copy.
//
// Bigtable's client never repeats a conditional mutation. swap does, and so may an interceptor or a retry
// policy of the caller, unseen. So if the predicate did not match, either another write was first or a copy
// of this one. The nonces show which (engine.isApplied). No copy that is still on its way can be
// applied after that.
func (s *engine) swap(ctx context.Context, r *cachedRun, e *edit, t *outcome.Backoff, ticket *ticket) (swapped, ambiguous bool, err error) {
	e.stored, e.sent = e.head.revision(), s.clock.local.Read()
	if len(r.stored) > revisionSize { // the cell with tickets has a later timestamp, and would hide this one
		e.m.DeleteCellsInColumn(familyHead, columnRev)
	}
	e.set(familyHead, columnRev, e.stored)
	e.set(familyHead, columnHead, e.head.encode())
	from, to := ticket.expectedRange(r.stored)
	m, wants := ifCell(familyHead, columnRev, from, to, e.m)
	for ; ; ambiguous = true {
		left := s.clock.local.LeastUntil(e.deadline)
		if !e.deadline.IsZero() && left < 0 {
			if !ambiguous {
				return false, ambiguous, runstore.ErrLeaseExpired
			}
			found, err := s.readRun(ctx, r.id)
			if err == nil {
				swapped, err = s.isApplied(ctx, r.id, e, &found.head)
			}
			if err == nil && !swapped {
				err = errLate // a copy may still be under way
			}
			if err != nil {
				return false, ambiguous, outcome.Unknown(err)
			}
			return true, ambiguous, nil
		}
		var matched bool
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		if !e.deadline.IsZero() {
			var early context.CancelFunc
			bound, early = context.WithTimeout(bound, left)
			defer early()
		}
		if (bound.Err() != nil || t.Left() <= 0) && !ambiguous { // nothing was sent: no time is left for a reply
			cancel()
			if ctx.Err() == nil && !e.deadline.IsZero() {
				return false, ambiguous, runstore.ErrLeaseExpired
			}
			return false, ambiguous, outcome.Unavailable(cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
		e.tried = true
		err := s.table.Apply(bound, runKey(r.id), m, bigtable.GetCondMutationResult(&matched))
		cancel()
		switch {
		case err == nil:
			return matched == wants, ambiguous, nil
		case refusedByServer(err) && !ambiguous:
			return false, ambiguous, outcome.Unavailable(s.explain(err))
		case ctx.Err() != nil || refusedByServer(err) || !t.More(ctx):
			return false, ambiguous, outcome.Unknown(s.explain(outcome.Cause(ctx, err)))
		}
	}
}

// noteApplied updates what the handle knows after a change was applied, and queues what follows from it.
func (s *engine) noteApplied(r *cachedRun, e *edit) {
	r.stored, r.head, r.beat = e.stored, e.head, 0
	r.keptBytes = min(r.keptBytes, r.head.RecordBytes)
	if p := r.pendingSeal.Load(); p != nil && !p.isNext(&e.head) {
		r.pendingSeal.CompareAndSwap(p, nil) // the change has taken it, or a change by another handle has made it useless
	}
	switch {
	case e.head.Purged || e.superseded:
		r.forget()
	default:
		r.tail = e.tail
		if maps.Copy(r.records, e.records); len(r.records) > maxRecords {
			clear(r.records)
			r.all = false
		}
		r.all = r.all || e.creates
		if e.result != nil && r.results != nil {
			if len(r.results) > 2*maxResults {
				r.results = nil // to be read again
			} else {
				r.results[e.result.name()] = *e.result
			}
		}
	}
	when := observation{e.sent, e.head.Epoch}
	s.garbage.deleteLater(when, e.obsolete)
	s.garbage.deleteSoon(rowsOf(when, e.obsoleteNow))
	s.feed.noteCommit(r.id, e)
	s.sealInBackground(r)
	s.moveInBackground(r)
}
