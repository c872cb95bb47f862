package inspector

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// maxDue is how many due entries of a queue are counted.
const maxDue = 100

// knownQueue is a queue of the store or of Tape.
type knownQueue struct {
	index  runstore.IndexName
	title  string
	remark string
	// level is that of a due entry: stuck work is bad from the first moment.
	level string
	// late reports that an entry is late only after lateAfter.
	late bool
}

var knownQueues = []knownQueue{
	{runstore.IndexRunnable, "Runs without a driver", "runs that want a driver and that no live lease covers", levelWarn, true},
	{tape.IndexUnknown, "Effects with an unknown outcome", "a reconciler has to find out whether they happened", levelBad, false},
	{tape.IndexStuckObligations, "Stuck obligations", "every attempt to compensate failed, or a worker gave up", levelBad, false},
	{tape.IndexObligations, "Obligations to compensate", "due, or claimed by a worker whose claim has expired", levelWarn, true},
	{tape.IndexDispatch, "Effects to dispatch", "outbox effects that wait for a dispatcher", levelWarn, true},
	{tape.IndexTimers, "Timers", "due, and not yet fired", levelWarn, true},
	{tape.IndexPending, "Effects under way", "begun, with no recorded outcome", "", true},
}

// queueView is a queue with its due entries.
type queueView struct {
	Ref    string `json:"ref"`
	Index  string `json:"index"`
	Title  string `json:"title"`
	Remark string `json:"remark"`
	// Due is how many entries are due; More reports that there are further ones.
	Due  int  `json:"due"`
	More bool `json:"more,omitempty"`
	// Oldest is the earliest time, as of dueSince, of the entries that are counted.
	Oldest time.Time `json:"oldest,omitzero"`
	Level  string    `json:"level,omitempty"`
	// Error says that the queue could not be read.
	Error string `json:"error,omitempty"`
}

// queues returns the queues of the store and of Tape with the number of their due entries.
func (in *inspector) queues(ctx context.Context, _ params) (any, error) {
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	v := struct {
		Now    time.Time   `json:"now"`
		Queues []queueView `json:"queues"`
	}{Now: now, Queues: make([]queueView, len(knownQueues))}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(3) // each holds up to a page of a read
	for i, known := range knownQueues {
		group.Go(func() error {
			q := queueView{Ref: toRef(string(known.index)), Index: string(known.index), Title: known.title, Remark: known.remark}
			entries, err := in.store.ScanIndex(ctx, runstore.IndexQuery{Index: known.index, Until: now, Limit: maxDue})
			if errors.Is(err, runstore.ErrCorrupt) { // one damaged record must not hide the other queues
				q.Error, q.Level, err = brief(err.Error()), levelBad, nil
			}
			if err != nil {
				return err
			}
			if q.Due = len(entries); q.Due > 0 {
				size := 0
				q.Oldest = now
				for _, e := range entries {
					size += len(e.Record.Value) + len(e.Head.Summary.Value)
					if at := in.dueSince(ctx, known.index, e, now); at.Before(q.Oldest) {
						q.Oldest = at
					}
				}
				q.More = q.Due == maxDue || size >= runstore.MaxPageBytes
				if !known.late || now.Sub(q.Oldest) > lateAfter {
					q.Level = known.level
				}
			}
			v.Queues[i] = q
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return v, nil
}

// dueSince returns the time since which an entry of an index is due, or from which it will be. The
// time of an entry of runstore.IndexRunnable may be long before that: a renewal does not move the
// entry, and a release moves it back to RunnableAt.
func (in *inspector) dueSince(ctx context.Context, index runstore.IndexName, e runstore.IndexEntry, now time.Time) time.Time {
	if index != runstore.IndexRunnable {
		return e.At
	}
	return in.waitingSince(ctx, e.Head, now)
}

// waitingSince returns runstore.Run.WaitingSince, but for a run whose lease was released and has not
// reached its expiry: such a run waits since the release. Where the store does not list the release, the
// time is RunnableAt, which may be too early, so that no run without a driver is overlooked.
func (in *inspector) waitingSince(ctx context.Context, head runstore.Run, now time.Time) time.Time {
	since := head.WaitingSince()
	if !since.After(now) || head.Live(now) {
		return since
	}
	since = head.RunnableAt
	reader, ok := runstore.As[runstore.TermReader](in.store)
	if !ok || since.After(now) {
		return since
	}
	terms, err := reader.ReadTerms(ctx, head.ID)
	if err != nil { // the time without the terms is good enough
		return since
	}
	for _, t := range terms {
		if t.Token == head.Token && t.EndedAt.After(since) {
			return t.EndedAt
		}
	}
	return since
}

// entryView is an entry of a queue.
type entryView struct {
	// At is the time since which the entry is due (dueSince). In the queue of runs without a driver it
	// may be later than that of the entry that follows.
	At     time.Time   `json:"at"`
	Head   headView    `json:"run"`
	Record *recordView `json:"record,omitempty"`
}

// queue returns a page of an index in the order of time: the entries that are due, or with all=yes
// those to come, too.
func (in *inspector) queue(ctx context.Context, p params) (any, error) {
	index, err := fromRef(p.Get("index"))
	if err != nil {
		return nil, badRequest("index", "%v", err)
	}
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	all, err := p.one("all", "no", "yes", "no")
	if err != nil {
		return nil, err
	}
	order, err := p.one("order", "oldest", "newest", "oldest")
	if err != nil {
		return nil, err
	}
	at, err := p.cursor("queue")
	if err != nil {
		return nil, err
	}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	q := runstore.IndexQuery{
		Index: runstore.IndexName(index), Until: now, After: runstore.Cursor(at), Limit: limit, Newest: order == "newest", Heads: true,
	}
	if all == "yes" {
		q.Until = runstore.EndOfTime
	}
	page, err := in.store.ScanIndex(ctx, q)
	if err != nil {
		return nil, err
	}
	v := struct {
		Now     time.Time   `json:"now"`
		Index   string      `json:"index"`
		Title   string      `json:"title,omitempty"`
		Remark  string      `json:"remark,omitempty"`
		Entries []entryView `json:"entries"`
		Cursor  string      `json:"cursor,omitempty"`
	}{Now: now, Index: shown(index), Entries: []entryView{}}
	for _, known := range knownQueues {
		if string(known.index) == index {
			v.Title, v.Remark = known.title, known.remark
		}
	}
	size := 0
	for _, e := range page {
		size += len(e.Record.Value) + len(e.Head.Summary.Value)
		entry := entryView{At: in.dueSince(ctx, q.Index, e, now), Head: viewHead(e.Head, now)}
		if e.Record.Version != 0 {
			record := viewRecord(e.Run, e.Record, now)
			entry.Record = &record
		}
		v.Entries = append(v.Entries, entry)
	}
	if len(page) == limit || size >= runstore.MaxPageBytes {
		v.Cursor = p.next("queue", string(page[len(page)-1].Cursor))
	}
	return v, nil
}
