package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core.
func (c core) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	return write(ctx, c.store, func(now time.Time) (runstore.Committed, error) {
		done, err := c.store.commit([]runstore.Batch{batch}, nil, now)
		if err != nil {
			return runstore.Committed{}, err
		}
		return done[0], nil
	})
}

// CommitMulti implements runstore.MultiCommitter.
func (c core) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return write(ctx, c.store, func(now time.Time) ([]runstore.Committed, error) {
		return c.store.commit(batches, rules.MultiCommitID(batches), now)
	})
}

// commit applies batches atomically. It checks the guards of all batches before it applies any, so
// that it has nothing to undo. multiCommitID is nil unless the commit is of several runs.
func (s *Store) commit(batches []runstore.Batch, multiCommitID []byte, now time.Time) ([]runstore.Committed, error) {
	if done := s.replayMulti(batches, multiCommitID); done != nil {
		return done, nil
	}
	runs := make([]*run, len(batches))
	for i, b := range batches {
		r, err := s.find(b.Run())
		if err != nil {
			return nil, err
		}
		runs[i] = r
		if _, replay := r.results[rules.BatchResult(b.ID)]; replay {
			continue
		}
		if err := r.Guards(b.Guards(), now, r.version); err != nil {
			return nil, err
		}
	}
	done := make([]runstore.Committed, len(batches))
	for i, b := range batches {
		if first, replay := runs[i].results[rules.BatchResult(b.ID)]; replay {
			done[i] = first.replayed()
			continue
		}
		done[i] = s.apply(runs[i], b.Writes, b.Guards().Fence, now)
		if !b.Purge {
			runs[i].remember(rules.BatchResult(b.ID), result{rules.FirstResult{Committed: done[i]}, multiCommitID})
		}
	}
	return done, nil
}

// replayMulti returns the results of a commit of several runs that was applied before, if at least
// one of the runs remembers it; otherwise nil. The other runs may have been purged.
func (s *Store) replayMulti(batches []runstore.Batch, multiCommitID []byte) []runstore.Committed {
	if multiCommitID == nil {
		return nil
	}
	alreadyApplied := false
	done := make([]runstore.Committed, len(batches))
	for i, b := range batches {
		done[i].Replayed = true
		if r, err := s.find(b.Run()); err == nil {
			if first, ok := r.results[rules.BatchResult(b.ID)]; ok {
				done[i] = first.replayed()
				alreadyApplied = alreadyApplied || bytes.Equal(first.multiCommitID, multiCommitID)
			}
		}
	}
	if !alreadyApplied {
		return nil
	}
	return done
}

// remember keeps a result under its name. An empty name keeps nothing.
func (r *run) remember(name string, first result) {
	if name != "" {
		first.Versions = slices.Clone(first.Versions)
		r.results[name] = first
	}
}

// replayed returns the result as a repeat of the request receives it.
func (r result) replayed() runstore.Committed {
	again := r.Committed
	again.Versions, again.Replayed = slices.Clone(again.Versions), true
	return again
}

// apply applies the writes; the caller has checked the guards. It is the only place where a run's
// journal and records change.
func (s *Store) apply(r *run, w runstore.Writes, f runstore.Fence, now time.Time) runstore.Committed {
	done := runstore.Committed{Time: now}
	if len(w.Events) > 0 {
		done.FirstSeq = r.LastSeq + 1
	}
	history := w.History()
	for i, e := range w.Events {
		r.LastSeq++
		s.last++
		event := runstore.Event{
			Seq: r.LastSeq, Kind: e.Kind, Data: bytes.Clone(e.Data), Time: now,
			Token: f.Token(), Owner: f.Owner(), Position: s.last,
		}
		if history != nil {
			was := history.Events[i]
			event.Time, event.Token, event.Owner = was.Time, was.Token, was.Owner
		}
		r.events = append(r.events, event)
		s.feed = append(s.feed, runstore.FeedEvent{Run: r.ID, Event: event})
	}
	done.LastSeq = r.LastSeq
	for i, change := range w.Records {
		if history != nil {
			done.Versions = append(done.Versions, s.restore(r, change, history.Records[i]))
			continue
		}
		stamp := runstore.Stamp{Seq: rules.ExplainingSeq(w, change, done.FirstSeq, r.LastSeq), Time: now, Token: f.Token()}
		done.Versions = append(done.Versions, s.change(r, change, stamp))
	}
	if history != nil {
		r.floor = max(r.floor, history.Floor)
		if !history.CreatedAt.IsZero() {
			r.CreatedAt = history.CreatedAt
		}
	}
	if !f.IsZero() && rules.IsProgress(w) {
		r.Holder.ProgressedAt = now
	}
	if w.Status != nil {
		r.Status = *w.Status
	}
	if !w.Runnable.IsZero() {
		r.RunnableAt = w.Runnable.Resolve(now)
	}
	if w.Release {
		state := rules.Released
		if f.IsZero() || history != nil {
			state = rules.Revoked
		}
		r.Head = r.EndedAt(state, now)
	}
	if w.Purge {
		s.purge(r, now)
	}
	return done
}

// change puts or deletes one record and replaces its index entries.
func (s *Store) change(r *run, w runstore.RecordWrite, stamp runstore.Stamp) runstore.Version {
	rec := r.records[w.Key]
	if rec != nil {
		s.removeEntries(r.ID, rec)
	}
	if w.Delete {
		if rec != nil {
			r.floor = max(r.floor, rec.Version)
			delete(r.records, w.Key)
		}
		return 0
	}
	if rec == nil {
		rec = &record{Record: runstore.Record{Key: w.Key, Version: r.floor, Created: stamp}}
		r.records[w.Key] = rec
	}
	rec.Version++
	rec.Value, rec.Updated = bytes.Clone(w.Value), stamp
	for _, p := range w.Index {
		s.insertEntry(r.ID, rec, p, stamp.Time)
	}
	return rec.Version
}

// restore puts one record as another store had it.
func (s *Store) restore(r *run, w runstore.RecordWrite, was runstore.Record) runstore.Version {
	if old := r.records[w.Key]; old != nil {
		s.removeEntries(r.ID, old)
	}
	rec := &record{Record: was}
	rec.Value = bytes.Clone(w.Value)
	r.records[w.Key] = rec
	for _, p := range w.Index {
		s.insertEntry(r.ID, rec, p, was.Updated.Time)
	}
	return was.Version
}

// purge removes everything but the token, the terms and the floor that keeps versions growing.
func (s *Store) purge(r *run, now time.Time) {
	for _, rec := range r.records {
		r.floor = max(r.floor, rec.Version)
		s.removeEntries(r.ID, rec)
	}
	r.purged = true
	r.events, r.records, r.results = nil, nil, nil
	r.Head = r.EndedAt(rules.Revoked, now)
	s.feed = slices.DeleteFunc(s.feed, func(e runstore.FeedEvent) bool { return e.Run == r.ID })
	s.order = slices.DeleteFunc(s.order, func(other *run) bool { return other == r })
}

func (r *run) version(key runstore.RecordKey) (runstore.Version, error) {
	if rec := r.records[key]; rec != nil {
		return rec.Version, nil
	}
	return 0, nil
}

// public returns the run's head in the form that GetRun returns.
func (r *run) public() runstore.Run {
	head := r.Run
	if rec := r.records[runstore.SummaryKey]; rec != nil {
		head.Summary = rec.clone()
	}
	return head
}

func (r *record) clone() runstore.Record {
	c := r.Record
	c.Value = bytes.Clone(c.Value)
	return c
}
