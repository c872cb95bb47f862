package bigtable

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

var (
	errBusy    = errors.New("bigtable: other handles wrote to the run all the time")
	errLate    = errors.New("bigtable: the strict lease ended while the write was under way")
	errLongAgo = fmt.Errorf("bigtable: the run had more writes since than its head remembers: %w", runstore.ErrForgotten)
)

// result is the remembered result of a request with writes and an id: the response to a repeat.
type result struct {
	ID       []byte             `json:"id"`
	Kind     string             `json:"kind,omitempty"` // the letter of the result's name; none for that of batches
	First    int64              `json:"first"`
	Last     int64              `json:"last"`
	Time     int64              `json:"time"`
	Versions []runstore.Version `json:"versions,omitempty"`
	// Token is that of the grant that was made or released, Former the end of the grant
	// before the one that was made.
	Token  int64 `json:"token,omitempty"`
	Former int   `json:"former,omitempty"`
}

// kindBatch is the first letter of the names of the results of batches. Programs of format 2 remember no
// other results.
const kindBatch = "b"

// name returns the name of the result as rules.BatchResult, GrantResult and ReleaseResult do.
func (r *result) name() string { return cmp.Or(r.Kind, kindBatch) + string(r.ID) }

// maxResults is how many results a row has: more than the contract promises.
const maxResults = runstore.RememberedBatches + 32

func (r result) committed() runstore.Committed {
	return runstore.Committed{
		FirstSeq: runstore.Seq(r.First), LastSeq: runstore.Seq(r.Last), Time: runstore.FromMicros(r.Time),
		Versions: slices.Clone(r.Versions), Replayed: true,
	}
}

// Commit implements adapter.Core: one conditional mutation of the run's row. Index entries and large values,
// which have rows of their own, cost one request before it.
func (s *engine) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	n := needs{keys: keysOf(batch.Guards(), batch.Writes), all: batch.Purge, results: batch.ID != "", clock: strict(batch.Guards().Fence)}
	n.events, n.strict, n.id = len(batch.Events) > 0, true, batch.ID != ""
	e, err := s.write(ctx, batch.Run(), n, func(r *cachedRun, now time.Time) (*edit, error) {
		if !r.exists() {
			return nil, runstore.ErrNotFound
		}
		if first, repeated := r.results[rules.BatchResult(batch.ID)]; repeated {
			done = first.committed()
			return r.replay(), nil
		}
		if err := r.head.rules(r.id, r.beat).Guards(batch.Guards(), now, r.version); err != nil {
			return nil, err
		}
		e := newEdit(r, now)
		f := batch.Guards().Fence
		return e, e.apply(batch.Writes, f.Token(), f.Owner(), f.IsZero(), rules.BatchResult(batch.ID), result{})
	})
	if e != nil {
		done = e.done
	}
	return done, err
}

// strict returns a needs.clock that asks for the server's clock if the current lease is strict and f is not
// zero.
func strict(f runstore.Fence) func(r *cachedRun) bool {
	return func(r *cachedRun) bool {
		return !f.IsZero() && r.head.Strict && rules.GrantState(r.head.State) == rules.Current
	}
}

func keysOf(g runstore.Guards, w runstore.Writes) (keys []runstore.RecordKey) {
	for _, v := range g.Versions {
		keys = append(keys, v.Key)
	}
	for _, r := range w.Records {
		keys = append(keys, r.Key)
	}
	return keys
}

// version returns the version of a record that the operation has read or the handle has
// written, 0 if it is absent. Its error is nil; rules.Head.Guards requires the signature.
func (r *cachedRun) version(key runstore.RecordKey) (runstore.Version, error) {
	if m := r.records[key]; m != nil && !m.Tombstone {
		return runstore.Version(m.Version), nil
	}
	return 0, nil
}

// apply adds writes to a change, and their result under a name for repeats of the request, unless the name is empty
// or they purge the run. It is the only place where a run's journal and records change.
//
// It refuses a change after which the run's row would have too many records that cannot leave it. Their values are
// in packs by then, so the number of the records counts, and the length of their keys. A change after which these
// records take no more room than before always fits: for example one that deletes a record and puts the records
// that it has reserved room for.
func (e *edit) apply(w runstore.Writes, token runstore.Token, owner runstore.Owner, unfenced bool, name string, r result) error {
	h := &e.head
	if len(w.Events) > 0 {
		e.seal(e.run.pendingSeal.Load())
	}
	e.done = runstore.Committed{Time: e.time()}
	if len(w.Events) > 0 {
		e.done.FirstSeq = runstore.Seq(h.Seq + 1)
	}
	small := inlineBound(w)
	history := w.History()
	e.appendEvents(w.Events, small, token, owner, history)
	e.done.LastSeq = runstore.Seq(h.Seq)
	e.records = map[runstore.RecordKey]*recordMeta{}
	for i, change := range w.Records {
		seq := int64(rules.ExplainingSeq(w, change, e.done.FirstSeq, e.done.LastSeq))
		var was *runstore.Record
		if history != nil {
			was = &history.Records[i]
		}
		e.done.Versions = append(e.done.Versions, runstore.Version(e.changeRecord(i, change, small, seq, int64(token), was)))
	}
	if history != nil {
		h.Floor = max(h.Floor, int64(history.Floor))
		e.setCreated(history.CreatedAt)
	}
	if token != 0 && rules.IsProgress(w) {
		h.requires(formatGrants)
		h.Progressed = e.now
	}
	if w.Status != nil {
		h.Status = int32(*w.Status)
	}
	if !w.Runnable.IsZero() {
		e.setRunnable(w.Runnable)
	}
	if w.Release {
		e.endGrant(unfenced || history != nil)
	}
	if w.Purge {
		e.purge()
	}
	if (len(w.Events) > 0 || len(e.rows) > 0) && h.MarkRev == 0 {
		e.setMark()
	}
	if h.RecordBytes > maxPinnedBytes && e.pinnedBytes > 0 {
		return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: fieldRecords, Problem: fmt.Sprintf(
			"the run's records that are in queues or keep room, without large values, would take %d bytes of its row; the limit in Bigtable is %d: delete some, or take them out of the queues",
			h.RecordBytes, maxPinnedBytes)}
	}
	if name == "" || w.Purge {
		return nil
	}
	if r.ID = []byte(name[1:]); name[:1] != kindBatch {
		r.Kind = name[:1]
		h.requires(formatGrants)
	}
	r.First, r.Last, r.Time, r.Versions = int64(e.done.FirstSeq), int64(e.done.LastSeq), e.now, slices.Clone(e.done.Versions)
	e.result = &r
	value, _ := json.Marshal(r) // numbers and bytes only: it cannot fail
	e.set(familyBatches, be16(int(h.Batches%maxResults)), value)
	h.Batches++
	return nil
}

// fieldRecords is the field of the error of [edit.apply]. The checks of the input return no such error for a
// batch that reaches the engine.
const fieldRecords = "records"

// isFull reports whether err is one of [edit.apply].
func isFull(err error) bool {
	var limit *runstore.InputError
	return errors.As(err, &limit) && limit.Kind == runstore.ErrTooLarge && limit.Field == fieldRecords
}

// inlineBound returns how large a value of the batch may be to stay in the run's row.
func inlineBound(w runstore.Writes) int {
	total := 0
	for _, ev := range w.Events {
		total += min(len(ev.Data), maxInline)
	}
	for _, r := range w.Records {
		total += min(len(r.Value), maxInline)
	}
	if total > maxInlineBatch {
		return tinyValue
	}
	return maxInline
}

// appendEvents appends events. history, if not nil, has their times, tokens and owners in an import.
func (e *edit) appendEvents(events []runstore.NewEvent, small int, token runstore.Token, owner runstore.Owner, history *runstore.History) {
	pack := packer{packed: packed{Rev: e.head.Rev, Nonce: e.nonce, What: "e", Of: e.head.Seq + 1}}
	for i, ev := range events {
		a := eventMeta{Kind: []byte(ev.Kind), Time: e.now, Token: int64(token), Owner: []byte(owner)}
		if history != nil {
			was := history.Events[i]
			a.Time, a.Token, a.Owner = runstore.Micros(was.Time), int64(was.Token), []byte(was.Owner)
		}
		if i == 0 {
			a.Nonce = e.nonce
		}
		data := ev.Data
		if len(data) > small {
			a.Pack, data = pack.add(data), nil
		}
		e.head.Seq++
		e.addEvent(encodeCell(&a, data))
	}
	if len(events) > 0 {
		e.setTail()
	}
	e.rows = append(e.rows, pack.rows(e.run.id)...)
}

// changeRecord puts or deletes one record, the i-th of the batch, and returns its version. was, if not
// nil, is the record as an import has it.
func (e *edit) changeRecord(i int, w runstore.RecordWrite, small int, seq, token int64, was *runstore.Record) int64 {
	old, under := e.run.records[w.Key], int64(0)
	h := &e.head
	if old != nil {
		if under = old.hides(); old.Tombstone {
			if w.Delete {
				e.records[w.Key] = old
				return 0
			}
			h.RecordBytes -= old.size
			old = nil
		}
	}
	if old != nil {
		h.RecordBytes -= old.size
		if !old.isMovable(w.Key) {
			e.pinnedBytes -= old.size
		}
		for _, p := range old.indexEntries(e.run.id, w.Key) {
			e.obsolete = append(e.obsolete, p.rowKey())
		}
		if old.Pack != nil {
			e.obsolete = append(e.obsolete, old.Pack.chunks(e.run.id)...)
		}
	}
	if w.Delete {
		if old != nil {
			h.Floor = max(h.Floor, old.Version)
			e.drop(familyRecords, string(w.Key))
		}
		if e.records[w.Key] = nil; under != 0 || e.mayArrive(w.Key) {
			e.setRecord(w.Key, &recordMeta{Tombstone: true, Hides: under, Rev: h.Rev, By: e.nonce}, nil)
		}
		return 0
	}
	m := &recordMeta{
		Version: h.Floor + 1, CreatedSeq: seq, Created: e.now, CreatedBy: token, UpdatedSeq: seq, Updated: e.now, UpdatedBy: token,
		Rev: h.Rev, By: e.nonce, Hides: under,
	}
	if old != nil {
		m.Version, m.CreatedSeq, m.Created, m.CreatedBy = max(old.Version, old.Above)+1, old.CreatedSeq, old.Created, old.CreatedBy
	}
	if was != nil {
		m.Version = int64(was.Version)
		m.CreatedSeq, m.Created, m.CreatedBy = int64(was.Created.Seq), runstore.Micros(was.Created.Time), int64(was.Created.Token)
		m.UpdatedSeq, m.Updated, m.UpdatedBy = int64(was.Updated.Seq), runstore.Micros(was.Updated.Time), int64(was.Updated.Token)
	}
	for _, p := range w.Index {
		m.Entries = append(m.Entries, storedEntry{[]byte(p.Index), runstore.Micros(p.At.Resolve(e.time()))})
	}
	for _, p := range m.indexEntries(e.run.id, w.Key) {
		e.rows = append(e.rows, put(p.rowKey(), "", nil))
	}
	value := w.Value
	if len(value) > small || h.RecordBytes > maxRecordBytes && len(value) > tinyValue {
		pack := packer{packed: packed{Rev: h.Rev, Nonce: e.nonce, What: "r", Of: int64(i)}}
		m.Pack, value = pack.add(value), nil
		e.rows = append(e.rows, pack.rows(e.run.id)...)
	}
	m.Reserved = reserveFor(w.Reserve)
	e.setRecord(w.Key, m, value)
	return m.Version
}

// mayArrive reports whether a cold row of a record may be missing since a failover, and arrive later. The digests
// show that the record never had one.
func (e *edit) mayArrive(key runstore.RecordKey) bool {
	m, sure := e.run.fingerprints.find(e.head.moveListID(), key)
	return e.head.Stamp != 0 && (m != nil || !sure)
}

// setRecord sets the cell of a record.
func (e *edit) setRecord(key runstore.RecordKey, m *recordMeta, value []byte) {
	cell := encodeCell(m, value)
	m.size = m.footprint(key, cell)
	e.head.RecordBytes += m.size
	if !m.isMovable(key) {
		e.pinnedBytes += m.size
	}
	e.set(familyRecords, string(key), cell)
	e.records[key] = m
}

// setRunnable sets the time at which the run wants a driver.
func (e *edit) setRunnable(w runstore.When) { e.head.Runnable = runstore.Micros(w.Resolve(e.time())) }

func (h *head) runsEntry(id runstore.RunID) indexEntry {
	p := indexEntry{index: string(runstore.IndexRuns), at: h.Created, run: id, rev: h.Generation, nonce: h.GenerationBy}
	if h.ListedRev != 0 {
		p.rev, p.nonce = h.ListedRev, h.ListedBy
	}
	return p
}

// endGrant ends the current grant.
func (e *edit) endGrant(unfenced bool) {
	if rules.GrantState(e.head.State) != rules.Current {
		return
	}
	e.head.State = int(rules.Released)
	if unfenced {
		e.head.State = int(rules.Revoked)
	}
	e.set(familyOther, columnEnded, []byte(be64(e.head.Token)+be64(e.now)))
}

// purge removes all cells of the row but the head. The orphan scan deletes the run's other rows.
func (e *edit) purge() {
	h := &e.head
	for key, m := range e.run.records {
		if m == nil {
			continue
		}
		h.Floor = max(h.Floor, m.Version)
		for _, p := range m.indexEntries(e.run.id, key) {
			e.obsolete = append(e.obsolete, p.rowKey())
		}
	}
	if !h.Unlisted {
		e.obsolete = append(e.obsolete, h.runsEntry(e.run.id).rowKey())
	}
	e.endGrant(true)
	if h.Moved != 0 {
		e.drop(familyOther, columnCold)
	}
	h.Floor, h.Moved, h.ColdTop = max(h.Floor, h.ColdTop), 0, 0
	h.Purged, h.Runnable, h.Sealed, h.EventBytes, h.RecordBytes, h.Batches = true, 0, 0, 0, 0, 0
	for _, f := range []string{familyEvents, familyRecords, familyBatches, familyFeed} {
		e.m.DeleteCellsInFamily(f)
	}
	if h.MarkRev == 0 {
		e.setMark()
	}
	e.purged = true
}

// setMark adds the run's mark, which leads the orphan scan to it. It is written before all else.
func (e *edit) setMark() {
	h := &e.head
	h.MarkRev, h.MarkBy = h.Rev, e.nonce
	// The first, in case not all of them fit into one request.
	e.rows = append([]mutation{put(h.mark(e.run.id).key(), "", nil)}, e.rows...)
}

func (h *head) mark(id runstore.RunID) mark { return mark{id, h.MarkRev, h.MarkBy} }
