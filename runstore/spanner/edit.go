package spanner

import (
	"reflect"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/rules"
)

// edit is what a write does to one run: all mutations, none of which decides anything.
// The guards were judged on rows that the same transaction has read.
type edit struct {
	g    *guarded
	old  head // as it was read; zero for a new run
	head head
	// transient writes have no result to remember: made twice, they do no harm.
	noResult bool
	now      time.Time
	done     runstore.Committed

	strictEnd localclock.Reading // when a strict lease that it is made under ends, on the clock of this process

	former  spanner.NullInt64 // with a grant: how the one before it ended
	events  []runstore.Event  // to be given places in the feed
	records []*record         // as they are after the write
	mutations
}

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

// strictly bounds a write under a strict lease. What comes after its end is refused by the
// guard; no commit is sent after it either.
func (e *edit) boundByStrictLease(f runstore.Fence, h rules.Head) {
	if !f.IsZero() && h.Holder.Strict {
		e.strictEnd = e.g.sentAt.Add(h.ExpiresAt.Sub(e.now))
	}
}

// apply makes the writes. It is the one place where a run's journal and records change.
func (e *edit) apply(w runstore.Writes, token runstore.Token, owner runstore.Owner) {
	first := e.head.LastSeq + 1
	for i, event := range w.Events {
		e.events = append(e.events, runstore.Event{
			Seq: runstore.Seq(first) + runstore.Seq(i), Kind: event.Kind, Data: stored(event.Data), Time: e.now, Token: token, Owner: owner,
		})
	}
	e.head.LastSeq += int64(len(w.Events))
	if len(w.Events) > 0 {
		e.done.FirstSeq = runstore.Seq(first)
	}
	e.done.LastSeq = runstore.Seq(e.head.LastSeq)
	for _, r := range w.Records {
		seq := rules.ExplainingSeq(w, r, runstore.Seq(first), runstore.Seq(e.head.LastSeq))
		e.done.Versions = append(e.done.Versions, e.change(r, runstore.Stamp{Seq: seq, Time: e.now, Token: token}))
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
		if token == 0 {
			state = rules.Revoked
		}
		e.head.grant(e.head.rules().Ended(state))
	}
	if w.Purge {
		e.purge()
	}
}

// maxInlineEntries is how many places a record may have with its value copied to each of its
// rows in Queue. With more places only Records holds the value, and a scan fetches it from
// there: eight copies of the largest batch (8 MiB, base64) would be 100.7 MB, above
// maxCommitBytes.
const maxInlineEntries = 4

// change puts or deletes one record, and its rows in the queues.
func (e *edit) change(w runstore.RecordWrite, stamp runstore.Stamp) runstore.Version {
	k, old := e.g.key, e.g.records[w.Key]
	if old != nil {
		for i, name := range old.PlaceNames {
			e.remove("Queue", spanner.Key{name, k.shard, old.PlaceTimes[i], old.UpdatedTime.Time, k.hash, k.run, old.Key})
		}
	}
	if w.Delete {
		if old != nil {
			e.head.VersionFloor = max(e.head.VersionFloor, old.Version.Int64)
			e.remove("Records", spanner.Key{k.hash, k.run, old.Key})
		}
		return 0
	}
	seq, token := spanner.NullInt64{Int64: int64(stamp.Seq), Valid: true}, spanner.NullInt64{Int64: int64(stamp.Token), Valid: true}
	r := &record{
		Key: stored(w.Key), Version: spanner.NullInt64{Int64: e.head.VersionFloor + 1, Valid: true},
		CreatedSeq: seq, CreatedTime: nullTime(stamp.Time), CreatedToken: token,
		UpdatedSeq: seq, UpdatedTime: nullTime(stamp.Time), UpdatedToken: token, Value: stored(w.Value),
	}
	if old != nil {
		r.Version.Int64 = old.Version.Int64 + 1
		r.CreatedSeq, r.CreatedTime, r.CreatedToken = old.CreatedSeq, old.CreatedTime, old.CreatedToken
	}
	e.head.VersionTop = max(e.head.VersionTop, r.Version.Int64)
	inline := r.Value
	if len(w.Index) > maxInlineEntries {
		inline = []byte{}
	}
	for _, p := range w.Index {
		due := p.At.Resolve(e.now)
		r.PlaceNames, r.PlaceTimes = append(r.PlaceNames, stored(p.Index)), append(r.PlaceTimes, due)
		e.put("Queue", []column{
			{"Name", stored(p.Index)}, {"Shard", k.shard}, {"Due", due}, {"UpdatedTime", e.now}, {"RunHash", k.hash}, {"Run", k.run}, {"Key", r.Key},
			{"Version", r.Version}, {"CreatedSeq", r.CreatedSeq}, {"CreatedTime", r.CreatedTime}, {"CreatedToken", r.CreatedToken},
			{"UpdatedSeq", seq}, {"UpdatedToken", token}, {"Value", inline},
		})
	}
	e.put("Records", []column{
		{"RunHash", k.hash}, {"Run", k.run}, {"Key", r.Key}, {"Version", r.Version}, {"CreatedSeq", r.CreatedSeq}, {"CreatedTime", r.CreatedTime},
		{"CreatedToken", r.CreatedToken}, {"UpdatedSeq", seq}, {"UpdatedTime", e.now}, {"UpdatedToken", token}, {"PlaceNames", r.PlaceNames}, {"PlaceTimes", r.PlaceTimes}, {"Value", r.Value},
	})
	e.records = append(e.records, r)
	return runstore.Version(r.Version.Int64)
}

// place gives the events their places in the feed, from a slot on.
func (e *edit) insertEvents(slot int64) {
	k := e.g.key
	for _, event := range e.events {
		e.insert("Events", []column{
			{"RunHash", k.hash}, {"Run", k.run}, {"Seq", int64(event.Seq)}, {"Committed", spanner.CommitTimestamp}, {"Slot", slot}, {"Time", event.Time},
			{"Token", int64(event.Token)}, {"Kind", stored(event.Kind)}, {"Owner", stored(event.Owner)}, {"Data", event.Data},
		})
		e.insert("Feed", append(feedKey(spanner.CommitTimestamp, slot, e.g.feedShards), column{"Run", k.run}, column{"Seq", int64(event.Seq)}))
		slot++
	}
}

// remembered is how many results of either kind of writes a run keeps, in a ring of slots:
// twice what the contract promises.
const resultRing = 2 * runstore.RememberedBatches

// remember keeps the write's result under its id, for the commit of several runs that
// whole names.
func (e *edit) recordResult(id resultID, whole []byte) {
	n := &e.head.OtherWrites
	if id.callers {
		n = &e.head.CallerWrites
	}
	slot := *n % e.g.ring
	*n++
	versions := make([]int64, len(e.done.Versions))
	for i, v := range e.done.Versions {
		versions[i] = int64(v)
	}
	e.put("Writes", []column{
		{"RunHash", e.g.key.hash}, {"Run", e.g.key.run}, {"Callers", id.callers}, {"Slot", slot}, {"Id", id.id}, {"Kind", id.kind},
		{"FirstSeq", int64(e.done.FirstSeq)}, {"LastSeq", int64(e.done.LastSeq)}, {"Time", e.done.Time},
		{"Token", e.head.Token}, {"Versions", versions}, {"Whole", whole}, {"FormerEnd", e.former}, {"Ended", nil},
	})
}

// save writes the run's row: what changed of it. It comes before its children's rows.
func (e *edit) putHead() {
	k := e.g.key
	columns := []column{{"RunHash", k.hash}, {"Run", k.run}}
	after := e.head.columns()
	if len(e.g.Head) == 0 {
		columns = append(append(columns, column{"Shard", k.shard}), after...)
		e.prepend(spanner.Insert("Runs", names(columns), values(columns)), columns)
		e.count += 16 // its entries in the indexes
		return
	}
	for i, before := range e.old.columns() {
		if !reflect.DeepEqual(before.value, after[i].value) {
			columns = append(columns, after[i])
			switch before.name {
			case "Created", "Runnable", "Purging", "GrantState", "HeldUntil":
				e.count += 16 // entries in the indexes
			}
		}
	}
	e.prepend(spanner.Update("Runs", names(columns), values(columns)), columns)
}

// committed returns what a former write of the same id answered. It is no replay where
// the former write may be an attempt of this very call.
func (r *result) committed(g *guarded) runstore.Committed {
	done := runstore.Committed{
		FirstSeq: runstore.Seq(r.FirstSeq), LastSeq: runstore.Seq(r.LastSeq), Time: r.Time.UTC(), Replayed: !g.ambiguous,
	}
	for _, v := range r.Versions {
		done.Versions = append(done.Versions, runstore.Version(v))
	}
	return done
}
