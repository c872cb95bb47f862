package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Check finds each corruption, and nothing in a store without one, in one partition and in many.
func TestPlanted(t *testing.T) {
	t.Parallel()
	at := func(id runstore.RunID, seq runstore.Seq, change func(*runstore.Event)) func(runstore.RunID, *runstore.Event) {
		return func(run runstore.RunID, e *runstore.Event) {
			if run == id && e.Seq == seq {
				change(e)
			}
		}
	}
	record := func(id runstore.RunID, key runstore.RecordKey, change func(*runstore.Record)) func(runstore.RunID, *runstore.Record) {
		return func(run runstore.RunID, r *runstore.Record) {
			if run == id && r.Key == key {
				change(r)
			}
		}
	}
	head := func(id runstore.RunID, change func(*runstore.Run)) func(*runstore.Run) {
		return func(r *runstore.Run) {
			if r.ID == id {
				change(r)
			}
		}
	}
	entry := func(index runstore.IndexName, id runstore.RunID, change func(*runstore.IndexEntry)) func(runstore.IndexQuery, []runstore.IndexEntry) []runstore.IndexEntry {
		return func(q runstore.IndexQuery, entries []runstore.IndexEntry) []runstore.IndexEntry {
			for i := range entries {
				if q.Index == index && entries[i].Run == id {
					change(&entries[i])
				}
			}
			return entries
		}
	}
	without := func(index runstore.IndexName, id runstore.RunID) func(runstore.IndexQuery, []runstore.IndexEntry) []runstore.IndexEntry {
		return func(q runstore.IndexQuery, entries []runstore.IndexEntry) []runstore.IndexEntry {
			return slices.DeleteFunc(entries, func(e runstore.IndexEntry) bool { return q.Index == index && e.Run == id })
		}
	}
	feed := func(id runstore.RunID, seq runstore.Seq, change func(events []runstore.FeedEvent, i int) []runstore.FeedEvent) func([]runstore.FeedEvent) []runstore.FeedEvent {
		return func(events []runstore.FeedEvent) []runstore.FeedEvent {
			i := slices.IndexFunc(events, func(e runstore.FeedEvent) bool { return e.Run == id && e.Seq == seq })
			if i < 0 {
				return events
			}
			return change(events, i)
		}
	}
	terms := func(id runstore.RunID, change func(terms []runstore.Term)) func(runstore.RunID, []runstore.Term) []runstore.Term {
		return func(run runstore.RunID, terms []runstore.Term) []runstore.Term {
			if run == id {
				change(terms)
			}
			return terms
		}
	}
	for name, c := range map[string]struct {
		plant falsified
		want  []want
	}{
		"nothing": {},

		// Writes that a fence should have refused.
		"a write under a former token": {
			falsified{event: at("run-2", 6, func(e *runstore.Event) { e.Token, e.Owner = 1, "a" })},
			[]want{
				{kind: audit.KindToken, run: "run-2", seq: 6, problem: `token 1 of "a" follows token 2 of "b" at seq 5`},
				{kind: audit.KindRecord, run: "run-2", key: "first", problem: "at seq 5 under token 2, and the event at seq 6 has token 1"},
				{kind: audit.KindClock, run: "run-2", seq: 6},
			},
		},
		"a write under a former token, the last one": {
			// The journal alone does not contradict it; the time of the current grant does.
			falsified{event: func(run runstore.RunID, e *runstore.Event) {
				if run == "run-2" && e.Seq >= 5 && e.Token == 2 {
					e.Token, e.Owner = 1, "a"
				}
			}, record: func(run runstore.RunID, r *runstore.Record) {
				if run == "run-2" {
					r.Created.Token, r.Updated.Token = min(r.Created.Token, 1), min(r.Updated.Token, 1)
				}
			}, entries: func(_ runstore.IndexQuery, entries []runstore.IndexEntry) []runstore.IndexEntry {
				for i := range entries {
					if entries[i].Run == "run-2" {
						r := &entries[i].Record
						r.Created.Token, r.Updated.Token = min(r.Created.Token, 1), min(r.Updated.Token, 1)
					}
				}
				return entries
			}},
			[]want{{kind: audit.KindClock, run: "run-2", seq: 5, problem: "token 2 was granted at"}},
		},
		"a record changed under a former token": {
			falsified{record: record("run-3", "silent", func(r *runstore.Record) { r.Created.Token, r.Updated.Token = 1, 1 })},
			[]want{{kind: audit.KindRecord, run: "run-3", key: "silent", problem: "under token 1, and an event up to there has token 2"}},
		},
		"two owners under one token": {
			falsified{event: at("run-1", 4, func(e *runstore.Event) { e.Owner = "c" })},
			[]want{{kind: audit.KindOwner, run: "run-1", seq: 4, problem: `token 1 has the owners "a", at seq 1, and "c"`}},
		},
		"another owner than the holder": {
			falsified{head: head("run-1", func(r *runstore.Run) { r.Holder.Owner = "c" })},
			[]want{{kind: audit.KindOwner, run: "run-1", seq: 5, problem: `"c", which holds the lease`}, {kind: audit.KindOwner, run: "run-1", seq: 6}, {kind: audit.KindTerm, run: "run-1", problem: `and the holder is "c"`}},
		},
		"an owner without a token": {
			falsified{event: at("run-1", 3, func(e *runstore.Event) { e.Owner = "c" })},
			[]want{{kind: audit.KindOwner, run: "run-1", seq: 3, problem: "no token"}},
		},
		"a token that was never granted": {
			falsified{event: at("run-4", 6, func(e *runstore.Event) { e.Token, e.Owner = 7, "c" })},
			[]want{
				{kind: audit.KindToken, run: "run-4", problem: "an event at seq 6 has token 7, and the last token of the run is 2"},
				{kind: audit.KindRecord, run: "run-4", key: "silent", problem: "under token 2, and an event up to there has token 7"},
			},
		},
		"a token of an epoch that never began": {
			falsified{head: head("run-4", func(r *runstore.Run) {
				r.Token = runstore.Epoch(3).Floor() + 1
				r.Holder.Token = r.Token
			})},
			[]want{
				{kind: audit.KindToken, run: "run-4", problem: "a token of epoch 3, and the store is in epoch 0"},
				{kind: audit.KindClock, run: "run-4", seq: 5, problem: "token 3.1 was granted at"},
			},
		},
		"a last token that fell": {
			falsified{head: head("run-4", func(r *runstore.Run) { r.Token, r.Holder.Token = 1, 1 })},
			[]want{
				{kind: audit.KindToken, run: "run-4", problem: "an event at seq 5 has token 2, and the last token of the run is 1"},
				{kind: audit.KindOwner, run: "run-4", seq: 1}, {kind: audit.KindOwner, run: "run-4", seq: 2}, {kind: audit.KindOwner, run: "run-4", seq: 4},
				{kind: audit.KindClock, run: "run-4", seq: 1},
				{kind: audit.KindTerm, run: "run-4", problem: "token 2 has a term, and the last token is 1"},
				{kind: audit.KindRecord, run: "run-4", key: "first", problem: "was updated under token 2, and the last token of the run is 1"},
			},
		},
		"a holder of a former token": {
			falsified{head: head("run-4", func(r *runstore.Run) { r.Holder.Token, r.Holder.Owner, r.Holder.GrantedAt = 1, "a", r.CreatedAt })},
			[]want{{kind: audit.KindToken, run: "run-4", problem: "the lease is held under token 1, and the last token is 2"}, {kind: audit.KindTerm, run: "run-4", problem: "the last token, 2, was none"}},
		},

		// Journals.
		"a gap in the seqs": {
			falsified{journal: func(id runstore.RunID, events []runstore.Event) []runstore.Event {
				return slices.DeleteFunc(events, func(e runstore.Event) bool { return id == "run-5" && e.Seq == 3 })
			}},
			[]want{{kind: audit.KindSeq, run: "run-5", seq: 3, problem: "seq 4 where seq 3 belongs"}},
		},
		"a seq twice": {
			falsified{journal: func(id runstore.RunID, events []runstore.Event) []runstore.Event {
				i := slices.IndexFunc(events, func(e runstore.Event) bool { return id == "run-5" && e.Seq == 3 })
				if i < 0 {
					return events
				}
				return slices.Insert(slices.Clone(events), i, events[i])
			}},
			[]want{{kind: audit.KindSeq, run: "run-5", seq: 4, problem: "seq 3 where seq 4 belongs"}},
		},
		"a lost end of a journal": {
			falsified{journal: func(id runstore.RunID, events []runstore.Event) []runstore.Event {
				return slices.DeleteFunc(events, func(e runstore.Event) bool { return id == "run-5" && e.Seq == 7 })
			}},
			[]want{
				{kind: audit.KindSeq, run: "run-5", problem: "ends at seq 6, and the head at 7"},
				{kind: audit.KindFeed, run: "run-5", problem: "up to seq 7, and the journal ends at 6"},
				{kind: audit.KindRecord, run: "run-5", key: "silent", problem: "at seq 7, and the journal ends at seq 6"},
			},
		},
		"a last seq that fell": {
			falsified{head: head("run-5", func(r *runstore.Run) { r.LastSeq = 6 })},
			[]want{{kind: audit.KindSeq, run: "run-5", problem: "ends at seq 7, and the head at 6"}},
		},
		"a changed event": {
			falsified{journal: func(id runstore.RunID, events []runstore.Event) []runstore.Event {
				for i := range events {
					if id == "run-5" && events[i].Seq == 4 {
						events[i].Data = []byte("forged")
					}
				}
				return events
			}},
			[]want{{kind: audit.KindFeed, run: "run-5", problem: "differ in the event at seq 4"}},
		},
		"an event of a former time": {
			falsified{event: at("run-5", 6, func(e *runstore.Event) { e.Time = e.Time.Add(-time.Hour) })},
			[]want{{kind: audit.KindClock, run: "run-5", seq: 6}, {kind: audit.KindClock, run: "run-5", key: "first"}},
		},
		"a position that falls": {
			falsified{event: at("run-5", 6, func(e *runstore.Event) { e.Position = 1 })},
			[]want{{kind: audit.KindFeed, run: "run-5", seq: 6, problem: "position 1 follows position"}, {kind: audit.KindFeed, run: "run-5", seq: 6, problem: "the position follows position"}},
		},

		// Terms.
		"terms that overlap": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) { terms[0].EndedAt = terms[0].EndedAt.Add(time.Second) })},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: "and token 2 was granted at"}},
		},
		"a term that did not end": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) { terms[0].End, terms[0].EndedAt = runstore.EndNone, time.Time{} })},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: "token 1 has not ended, and token 2 was granted"}},
		},
		"a term twice": {
			falsified{terms: func(id runstore.RunID, terms []runstore.Term) []runstore.Term {
				if id == "run-4" {
					terms = append(terms[:1:1], terms...)
				}
				return terms
			}},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: "the term of token 1 is before that of token 1"}},
		},
		"a term of a token that was never granted": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) { terms[1].Token = 3 })},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: "token 3 has a term, and the last token is 2"}},
		},
		"another term than the holder's": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) { terms[1].Owner = "c" })},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: `that of "c", and the holder is "b"`}},
		},
		"an end of the current term": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) {
				terms[1].End, terms[1].EndedAt = runstore.EndReleased, terms[1].GrantedAt
			})},
			[]want{{kind: audit.KindTerm, run: "run-4", problem: "was released, and the lease is held"}},
		},
		"a release after the next grant": {
			falsified{terms: terms("run-4", func(terms []runstore.Term) {
				terms[0].End, terms[0].EndedAt = runstore.EndReleased, terms[1].GrantedAt.Add(time.Second)
			})},
			[]want{{kind: audit.KindClock, run: "run-4", problem: "and token 2 was granted at"}},
		},

		// Records.
		"a stamp of an event that is not there": {
			falsified{record: record("run-6", "silent", func(r *runstore.Record) { r.Created.Seq, r.Updated.Seq = 9, 9 })},
			[]want{{kind: audit.KindRecord, run: "run-6", key: "silent", problem: "at seq 9, and the journal ends at seq 7"}},
		},
		"a stamp of a later token": {
			falsified{record: record("run-6", "first", func(r *runstore.Record) { r.Created.Token = 2 })},
			[]want{
				{kind: audit.KindRecord, run: "run-6", key: "first", problem: "created at seq 2 under token 2, and the event at seq 4 has token 1"},
				{kind: audit.KindIndex, run: "run-6", key: "first", index: queue},
			},
		},
		"a stamp of a token that was never granted": {
			falsified{record: record("run-6", "silent", func(r *runstore.Record) { r.Updated.Token, r.Version = 3, 2 })},
			[]want{{kind: audit.KindRecord, run: "run-6", key: "silent", problem: "updated under token 3, and the last token of the run is 2"}},
		},
		"a record that was updated before its creation": {
			falsified{record: record("run-6", "first", func(r *runstore.Record) { r.Updated.Seq = 1 })},
			[]want{
				{kind: audit.KindRecord, run: "run-6", key: "first", problem: "created at seq 2 and updated at seq 1"},
				{kind: audit.KindIndex, run: "run-6", key: "first", index: queue}, {kind: audit.KindClock, run: "run-6", key: "first"},
			},
		},
		"a record that goes back to version 1": {
			falsified{record: record("run-6", "first", func(r *runstore.Record) { r.Version = 1 })},
			[]want{{kind: audit.KindRecord, run: "run-6", key: "first", problem: "at version 1"}, {kind: audit.KindIndex, run: "run-6", key: "first", index: queue, problem: "has version 1 of the record"}},
		},
		"another summary": {
			falsified{head: head("run-6", func(r *runstore.Run) { r.Summary.Value = []byte("forged") })},
			[]want{{kind: audit.KindRecord, run: "run-6", key: runstore.SummaryKey, problem: "another summary"}},
		},

		// Indexes.
		"an entry with another value": {
			falsified{entries: entry(queue, "run-7", func(e *runstore.IndexEntry) {
				if e.Record.Key == "first" {
					e.Record.Value = []byte("forged")
				}
			})},
			[]want{{kind: audit.KindIndex, run: "run-7", key: "first", index: queue, problem: "another value"}},
		},
		"an entry of a former version": {
			falsified{entries: entry(queue, "run-7", func(e *runstore.IndexEntry) {
				if e.Record.Key == "first" {
					e.Record.Version = 1
				}
			})},
			[]want{{kind: audit.KindIndex, run: "run-7", key: "first", index: queue, problem: "the run has version 2"}},
		},
		"an entry without a record": {
			falsified{entries: entry(queue, "run-7", func(e *runstore.IndexEntry) {
				if e.Record.Key == "first" {
					e.Record.Key = "gone"
				}
			})},
			[]want{{kind: audit.KindIndex, run: "run-7", key: "gone", index: queue, problem: "no such record"}},
		},
		"a run that is not listed": {
			falsified{entries: without(runstore.IndexRuns, "run-7")},
			[]want{{kind: audit.KindIndex, run: "run-7", index: runstore.IndexRuns, problem: "not in runs"}},
		},
		"an unlisted run that is listed": {
			falsified{entries: func(q runstore.IndexQuery, entries []runstore.IndexEntry) []runstore.IndexEntry {
				if q.Index == runstore.IndexRuns {
					for i := range entries {
						if entries[i].Run == "run-7" {
							entries[i].Head.Unlisted = true
						}
					}
				}
				return entries
			}},
			[]want{{kind: audit.KindIndex, run: "run-7", index: runstore.IndexRuns, problem: "unlisted"}},
		},
		"a run that is listed at another time": {
			falsified{entries: entry(runstore.IndexRuns, "run-7", func(e *runstore.IndexEntry) { e.At = e.At.Add(time.Microsecond) })},
			[]want{{kind: audit.KindIndex, run: "run-7", index: runstore.IndexRuns, problem: "was created at"}},
		},
		"a runnable run that is in no index": {
			falsified{entries: without(runstore.IndexRunnable, "run-7")},
			[]want{{kind: audit.KindIndex, run: "run-7", index: runstore.IndexRunnable, problem: "is not in the index"}},
		},
		"an entry after the expiry": {
			falsified{entries: entry(runstore.IndexRunnable, "run-7", func(e *runstore.IndexEntry) { e.At = e.At.Add(time.Microsecond) })},
			[]want{{kind: audit.KindIndex, run: "run-7", index: runstore.IndexRunnable, problem: "which is not from"}},
		},

		// The feed.
		"an event that the feed lacks": {
			falsified{feed: feed("run-0", 3, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent { return slices.Delete(events, i, i+1) })},
			[]want{{kind: audit.KindFeed, run: "run-0", seq: 4, problem: "after seq 2"}},
		},
		"an end that the feed lacks": {
			falsified{feed: feed("run-0", 7, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent { return slices.Delete(events, i, i+1) })},
			[]want{{kind: audit.KindFeed, run: "run-0", seq: 7, problem: "missing in the feed"}},
		},
		"an event that the feed shows twice": {
			falsified{feed: feed("run-8", 7, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent {
				first := events[slices.IndexFunc(events, func(e runstore.FeedEvent) bool { return e.Run == "run-0" })]
				first.Position = events[i].Position
				events[i] = first
				return events
			})},
			[]want{
				{kind: audit.KindFeed, run: "run-0", seq: 1, problem: "after seq 7"}, {kind: audit.KindFeed, run: "run-0", seq: 2, problem: "missing in the feed"},
				{kind: audit.KindFeed, run: "run-8", seq: 7, problem: "missing in the feed"},
			},
		},
		"a position that the store does not know": {
			falsified{feed: feed("run-8", 7, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent {
				events[i].Position += 100
				return events
			})},
			[]want{{kind: audit.KindFeed, problem: "does not know the position"}},
		},
		"another event in the feed": {
			falsified{feed: feed("run-0", 3, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent {
				events[i].Token = 1
				return events
			})},
			[]want{{kind: audit.KindFeed, run: "run-0", problem: "differ in the event at seq 3"}},
		},
		"events of a run that is not there": {
			falsified{feed: func(events []runstore.FeedEvent) []runstore.FeedEvent {
				for i := range events {
					if events[i].Run == "run-8" {
						events[i].Run = "gone"
					}
				}
				return events
			}},
			[]want{
				{kind: audit.KindFeed, run: "gone", problem: "does not exist"},
				{kind: audit.KindFeed, run: "run-8", seq: 1, problem: "missing in the feed"},
			},
		},
		"damage": {
			falsified{feed: feed("run-0", 3, func(events []runstore.FeedEvent, i int) []runstore.FeedEvent {
				events[i] = runstore.FeedEvent{Run: "run-0", Event: runstore.Event{Seq: 3, Position: events[i].Position}, Err: &runstore.CorruptError{Run: "run-0"}}
				return events
			})},
			[]want{{kind: audit.KindDamaged, run: "run-0", seq: 3}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := memory.New(nil)
			store := c.plant
			store.RunStore = engine.Open()
			fill(t, store.RunStore, engine.Advance)
			for _, maxRuns := range []int{0, 1, 3} {
				found, report := check(t, &store, audit.Options{MaxRuns: maxRuns})
				for _, w := range c.want {
					if !slices.ContainsFunc(found, w.matches) {
						t.Errorf("partitions of %d: no finding %+v", maxRuns, w)
					}
				}
				for _, f := range found {
					if !slices.ContainsFunc(c.want, func(w want) bool { return w.matches(f) }) {
						t.Errorf("partitions of %d: unexpected: %v", maxRuns, f)
					}
				}
				if report.Suppressed != 0 || report.Findings+report.Warnings != int64(len(found)) {
					t.Errorf("partitions of %d: %+v for %d findings", maxRuns, report, len(found))
				}
				if maxRuns == 1 && report.Passes < 8 {
					t.Errorf("partitions of 1: the feed was read %d times", report.Passes)
				}
				if name == "nothing" {
					report.Passes = 0
					if want := (audit.Report{Runs: 10, Unlisted: 1, Events: 63, Terms: 18, FeedEvents: 63, Records: 36, Entries: 36}); report != want {
						t.Errorf("partitions of %d: got %+v, want %+v", maxRuns, report, want)
					}
				}
			}
		})
	}
}
