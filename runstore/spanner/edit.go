package spanner

import (
	"reflect"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// edit collects the mutations of a write to one run. Building an edit decides nothing: the guards
// were judged before, on rows that the same transaction has read.
type edit struct {
	g    *guarded
	old  head // as read; zero for a new run
	head head
	// noResult is set for a write whose result need not be recorded, because applying the write
	// twice has the effect of applying it once (a renewal without writes).
	noResult bool
	now      time.Time
	done     runstore.Committed

	strictEnd localclock.Reading // end of the strict lease that the write is fenced by, on this process's clock; else zero

	former  spanner.NullInt64 // for a grant: how the previous grant ended
	events  []runstore.Event  // events to append to the journal and the feed
	records []*record         // the records' state after the write
	mutations
}

// newEdit returns an edit that changes nothing yet, stamped with the store clock of g.
func newEdit(g *guarded) *edit {
	e := &edit{g: g, now: g.now()}
	if len(g.Head) > 0 {
		e.old = *g.Head[0]
	}
	e.head = e.old
	e.head.Seen = e.now
	e.done.Time = e.now
	return e
}

// boundByStrictLease records when the strict lease that fences this write ends, so that no commit
// is sent after that time. The guard refuses a write that is judged after the end.
func (e *edit) boundByStrictLease(f runstore.Fence, h rules.Head) {
	if !f.IsZero() && h.Holder.Strict {
		e.strictEnd = e.g.sentAt.Add(h.ExpiresAt.Sub(e.now))
	}
}

// apply adds the batch's writes to the edit. It is the only function that appends to a run's
// journal and changes its records.
func (e *edit) apply(w runstore.Writes, token runstore.Token, owner runstore.Owner) {
	first := e.head.LastSeq + 1
	history := w.History()
	for i, event := range w.Events {
		next := runstore.Event{
			Seq: runstore.Seq(first) + runstore.Seq(i), Kind: event.Kind, Data: stored(event.Data), Time: e.now, Token: token, Owner: owner,
		}
		if history != nil {
			was := history.Events[i]
			next.Time, next.Token, next.Owner = was.Time, was.Token, was.Owner
		}
		e.events = append(e.events, next)
	}
	e.head.LastSeq += int64(len(w.Events))
	if len(w.Events) > 0 {
		e.done.FirstSeq = runstore.Seq(first)
	}
	e.done.LastSeq = runstore.Seq(e.head.LastSeq)
	for i, r := range w.Records {
		if history != nil {
			e.done.Versions = append(e.done.Versions, e.restore(r, history.Records[i]))
			continue
		}
		seq := rules.ExplainingSeq(w, r, runstore.Seq(first), runstore.Seq(e.head.LastSeq))
		e.done.Versions = append(e.done.Versions, e.change(r, runstore.Stamp{Seq: seq, Time: e.now, Token: token}))
	}
	if history != nil {
		if e.head.VersionFloor = max(e.head.VersionFloor, int64(history.Floor)); !history.CreatedAt.IsZero() {
			e.head.Created = nullTime(history.CreatedAt)
		}
	}
	if token != 0 && rules.IsProgress(w) {
		e.head.Progressed = nullTime(e.now)
	}
	if w.Status != nil {
		e.head.Status = int64(*w.Status)
	}
	if !w.Runnable.IsZero() {
		e.head.Runnable = nullTime(w.Runnable.Resolve(e.now))
	}
	if w.Release {
		state := rules.Released
		if token == 0 || history != nil {
			state = rules.Revoked
		}
		e.head.grant(e.head.rules().EndedAt(state, e.now))
	}
	if w.Purge {
		e.purge()
	}
}

// maxInlineEntries is the largest number of index entries with which a record's value is copied
// into each of its rows in Queue. With more entries only Records holds the value and a scan fetches
// it from there: eight copies of the largest batch (8 MiB, in base64) would be 100.7 MB, above
// maxCommitBytes.
const maxInlineEntries = 4

// change puts or deletes one record together with its index entries (rows of Queue). It returns the
// record's new version, 0 after a deletion.
func (e *edit) change(w runstore.RecordWrite, stamp runstore.Stamp) runstore.Version {
	k, old := e.g.key, e.removeEntries(w.Key)
	if w.Delete {
		if old != nil {
			e.head.VersionFloor = max(e.head.VersionFloor, old.Version.Int64)
			e.remove("Records", spanner.Key{k.hash, k.run, old.Key})
		}
		return 0
	}
	r := recordOf(runstore.Record{Key: w.Key, Version: runstore.Version(e.head.VersionFloor + 1), Value: w.Value, Created: stamp, Updated: stamp})
	if old != nil {
		r.Version.Int64 = old.Version.Int64 + 1
		r.CreatedSeq, r.CreatedTime, r.CreatedToken = old.CreatedSeq, old.CreatedTime, old.CreatedToken
	}
	return e.putRecord(r, w.Index)
}

// restore puts one record as another store had it, together with its index entries.
func (e *edit) restore(w runstore.RecordWrite, was runstore.Record) runstore.Version {
	e.removeEntries(w.Key)
	return e.putRecord(recordOf(was), w.Index)
}

// removeEntries removes the index entries of a record, and returns the record; nil if it is absent.
func (e *edit) removeEntries(key runstore.RecordKey) *record {
	k, old := e.g.key, e.g.records[key]
	if old != nil {
		for i, name := range old.PlaceNames {
			e.remove("Queue", spanner.Key{name, k.shard, old.PlaceTimes[i], old.UpdatedTime.Time, k.hash, k.run, old.Key})
		}
	}
	return old
}

// putRecord puts the row of a record and those of its index entries.
func (e *edit) putRecord(r *record, index []runstore.Place) runstore.Version {
	k := e.g.key
	e.head.VersionTop = max(e.head.VersionTop, r.Version.Int64)
	inline := r.Value
	if len(index) > maxInlineEntries {
		inline = []byte{}
	}
	for _, p := range index {
		due := p.At.Resolve(e.now)
		r.PlaceNames, r.PlaceTimes = append(r.PlaceNames, stored(p.Index)), append(r.PlaceTimes, due)
		e.put("Queue", []column{
			{"Name", stored(p.Index)}, {"Shard", k.shard}, {"Due", due}, {"UpdatedTime", r.UpdatedTime.Time}, {"RunHash", k.hash}, {"Run", k.run}, {"Key", r.Key},
			{"Version", r.Version}, {"CreatedSeq", r.CreatedSeq}, {"CreatedTime", r.CreatedTime}, {"CreatedToken", r.CreatedToken},
			{"UpdatedSeq", r.UpdatedSeq}, {"UpdatedToken", r.UpdatedToken}, {"Value", inline},
		})
	}
	e.put("Records", []column{
		{"RunHash", k.hash}, {"Run", k.run}, {"Key", r.Key}, {"Version", r.Version}, {"CreatedSeq", r.CreatedSeq}, {"CreatedTime", r.CreatedTime},
		{"CreatedToken", r.CreatedToken}, {"UpdatedSeq", r.UpdatedSeq}, {"UpdatedTime", r.UpdatedTime.Time}, {"UpdatedToken", r.UpdatedToken}, {"PlaceNames", r.PlaceNames}, {"PlaceTimes", r.PlaceTimes}, {"Value", r.Value},
	})
	e.records = append(e.records, r)
	return runstore.Version(r.Version.Int64)
}

// insertEvents adds the rows of the events to Events and Feed, at consecutive slots from slot on.
func (e *edit) insertEvents(slot int64) {
	for _, event := range e.events {
		e.insertEvent(event, slot)
		e.insert("Feed", append(feedKey(slot, e.g.feedShards), column{"Run", e.g.key.run}, column{"Seq", int64(event.Seq)}))
		slot++
	}
}

// insertEvent adds a row of Events.
func (e *edit) insertEvent(event runstore.Event, slot int64) {
	e.insert("Events", []column{
		{"RunHash", e.g.key.hash}, {"Run", e.g.key.run}, {"Seq", int64(event.Seq)}, {"Committed", spanner.CommitTimestamp}, {"Slot", slot},
		{"Time", event.Time}, {"Token", int64(event.Token)}, {"Kind", stored(event.Kind)}, {"Owner", stored(event.Owner)}, {"Data", event.Data},
	})
}

// resultRing is the number of results that a run keeps in each of its two rings (callers' ids,
// adapter's ids): twice what the contract promises.
const resultRing = 2 * runstore.RememberedBatches

// recordResult stores the write's result under id, for lookup by a repeated attempt. It replaces
// the oldest result of the ring. multiCommitID names the commit over several runs that the write is
// part of, if any.
func (e *edit) recordResult(id resultID, multiCommitID []byte) {
	n := &e.head.OtherWrites
	if id.callers {
		n = &e.head.CallerWrites
	}
	slot := *n % e.g.ring
	*n++
	r := e.result()
	e.put("Writes", []column{
		{"RunHash", e.g.key.hash}, {"Run", e.g.key.run}, {"Callers", id.callers}, {"Slot", slot}, {"Id", id.id}, {"Kind", id.kind},
		{"FirstSeq", r.FirstSeq}, {"LastSeq", r.LastSeq}, {"Time", r.Time},
		{"Token", r.Token}, {"Versions", r.Versions}, {"Whole", multiCommitID}, {"FormerEnd", r.FormerEnd}, {"Ended", nil},
	})
	e.count += 6 // its index entry in WritesById: the former one is deleted, and the next has five columns
}

// result returns the result of the write.
func (e *edit) result() *result {
	r := &result{
		FirstSeq: int64(e.done.FirstSeq), LastSeq: int64(e.done.LastSeq), Time: e.done.Time, Token: e.head.Token,
		Versions: make([]int64, len(e.done.Versions)), FormerEnd: e.former,
	}
	for i, v := range e.done.Versions {
		r.Versions[i] = int64(v)
	}
	return r
}

// putHead adds the mutation of the run's row: an insert for a new run, else an update of the
// changed columns. The mutation goes first, because interleaved child rows need their parent.
func (e *edit) putHead() {
	k := e.g.key
	columns := []column{{"RunHash", k.hash}, {"Run", k.run}}
	after := e.head.columns()
	if len(e.g.Head) == 0 {
		columns = append(append(columns, column{"Shard", k.shard}), after...)
		e.prepend(spanner.Insert("Runs", names(columns), values(columns)), columns)
		e.count += 16 // its index entries
		return
	}
	for i, before := range e.old.columns() {
		if !reflect.DeepEqual(before.value, after[i].value) {
			columns = append(columns, after[i])
			switch before.name {
			case "Created", "Runnable", "Purging", "GrantState", "HeldUntil":
				e.count += 16 // its index entries
			}
		}
	}
	e.prepend(spanner.Update("Runs", names(columns), values(columns)), columns)
}

// committed returns the stored result as the reply of a batch. Replayed is false where the stored
// write may be an earlier attempt of this very call.
func (r *result) committed(g *guarded) runstore.Committed {
	done := runstore.Committed{
		FirstSeq: runstore.Seq(r.FirstSeq), LastSeq: runstore.Seq(r.LastSeq), Time: r.Time.UTC(), Replayed: !g.ambiguous,
	}
	for _, v := range r.Versions {
		done.Versions = append(done.Versions, runstore.Version(v))
	}
	return done
}
