package inspector

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// eventView is an event of a journal or of the feed.
type eventView struct {
	Seq       int64     `json:"seq"`
	Kind      string    `json:"kind"`
	Time      time.Time `json:"time,omitzero"`
	Token     int64     `json:"token,omitempty"`
	TokenText string    `json:"token_text,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Position  int64     `json:"position,omitempty"`
	// Status is the member "status" of the data, as Tape's events have it.
	Status string  `json:"status,omitempty"`
	Level  string  `json:"level,omitempty"`
	Data   content `json:"data"`
}

func viewEvent(e runstore.Event) eventView {
	v := eventView{
		Seq: int64(e.Seq), Kind: brief(e.Kind), Time: e.Time, Token: int64(e.Token), Owner: brief(string(e.Owner)),
		Position: int64(e.Position), Data: preview(string(e.Data)),
	}
	if e.Token != 0 {
		v.TokenText = e.Token.String()
	}
	var head struct {
		Status string `json:"status"`
	}
	if json.Unmarshal(e.Data, &head) == nil {
		v.Status, v.Level = brief(head.Status), wordLevel(head.Status)
	}
	if _, broken := lease.ParseBreak(e.Data); broken && e.Kind == lease.BreakKind {
		v.Level = levelWarn
	}
	return v
}

// wordLevel returns the level of a status that Tape's events have.
func wordLevel(status string) string {
	switch status {
	case "stuck", "unknown":
		return levelBad
	case "failed":
		return levelWarn
	default:
		return ""
	}
}

// itemView is an entry of a timeline: an event, or the present state of a record, at the event that
// explains its last change.
type itemView struct {
	Event  *eventView  `json:"event,omitempty"`
	Record *recordView `json:"record,omitempty"`
}

const (
	// maxRecordsRead and maxRecordBytes bound the records that a timeline or a summary looks at.
	maxRecordsRead = 4000
	maxRecordBytes = 16 << 20
	// maxItemRecords is how many records one page of a timeline has.
	maxItemRecords = 400
)

// timelineView is a page of the timeline of a run.
type timelineView struct {
	Now     time.Time  `json:"now"`
	LastSeq int64      `json:"last_seq"`
	Items   []itemView `json:"items"`
	// RecordsRead is how many records were looked at for this page, and RecordsMore reports that the
	// run has more of them. Omitted is how many records of this page's events are left out.
	RecordsRead int  `json:"records_read"`
	RecordsMore bool `json:"records_more,omitempty"`
	Omitted     int  `json:"omitted,omitempty"`
	// RecordsError says why records are missing: one of them is damaged.
	RecordsError string `json:"records_error,omitempty"`
	Cursor       string `json:"cursor,omitempty"`
}

// timeline returns a page of a run's events and records, in the order of the journal or, by default,
// its reverse. A record is where its last change is. In the order of the journal it follows its event.
func (in *inspector) timeline(ctx context.Context, p params) (any, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	order, err := p.one("order", "newest", "newest", "oldest")
	if err != nil {
		return nil, err
	}
	head, err := in.store.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	newest := order == "newest"
	begin := runstore.Seq(1)
	if newest {
		begin = head.LastSeq + 1 // the page has the events before it
	}
	at, err := p.seqCursor("timeline", begin)
	if err != nil {
		return nil, err
	}
	v := timelineView{LastSeq: int64(head.LastSeq), Items: []itemView{}}
	var events []runstore.Event
	if newest {
		at = min(at, head.LastSeq+1)
		events, err = in.eventsBefore(ctx, id, at, limit)
	} else {
		events, err = in.store.ReadJournal(ctx, id, at, limit)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		event := viewEvent(e)
		v.Items = append(v.Items, itemView{Event: &event})
	}
	// The page ends at the first or the last event of the journal unless it has a cursor. Records from
	// before the first event have the seq 0; those of a commit after this read belong to the end.
	low, high := runstore.Seq(0), runstore.Seq(1<<62)
	if n := len(events); n > 0 {
		first, last := events[0].Seq, events[n-1].Seq
		if newest {
			if first > 1 {
				low, v.Cursor = first, p.next("timeline", strconv.FormatInt(int64(first), 10))
			}
			if last < head.LastSeq {
				high = last
			}
		} else {
			if first > 1 {
				low = first
			}
			if last < head.LastSeq {
				high, v.Cursor = last, p.next("timeline", strconv.FormatInt(int64(last)+1, 10))
			}
		}
	} else if head.LastSeq > 0 {
		low, high = 1, 0 // a cursor beyond the end: no event and so no record
	}
	if v.Now, err = in.store.Now(ctx); err != nil {
		return nil, err
	}
	if low <= high {
		err := in.addRecords(ctx, id, &v, low, high)
		if errors.Is(err, runstore.ErrCorrupt) { // a damaged record must not hide the journal
			v.RecordsError = brief(err.Error())
		} else if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(v.Items, func(a, b itemView) int { return a.compare(b) })
	if newest {
		slices.Reverse(v.Items)
	}
	return v, nil
}

// eventsBefore returns the last events before a seq, ascending: limit of them, or fewer where large
// events would fill more than a page of a read.
func (in *inspector) eventsBefore(ctx context.Context, id runstore.RunID, before runstore.Seq, limit int) ([]runstore.Event, error) {
	for n := runstore.Seq(limit); ; n /= 2 {
		from := max(before-n, 1)
		if from >= before {
			return nil, nil
		}
		events, err := in.store.ReadJournal(ctx, id, from, int(before-from))
		if err != nil || len(events) == int(before-from) || n == 1 {
			return events, err
		}
	}
}

// addRecords adds the records whose last change has a seq from low to high.
func (in *inspector) addRecords(ctx context.Context, id runstore.RunID, v *timelineView, low, high runstore.Seq) (err error) {
	added := 0
	v.RecordsRead, v.RecordsMore, err = in.eachRecord(ctx, id, func(rec runstore.Record) {
		if rec.Updated.Seq < low || rec.Updated.Seq > high {
			return
		}
		if added == maxItemRecords {
			v.Omitted++
			return
		}
		added++
		record := viewRecord(id, rec, v.Now)
		v.Items = append(v.Items, itemView{Record: &record})
	})
	return err
}

// eachRecord calls see with the records of a run in the order of their keys, up to maxRecordsRead and
// maxRecordBytes. more reports that the run may have further ones.
func (in *inspector) eachRecord(ctx context.Context, id runstore.RunID, see func(runstore.Record)) (read int, more bool, err error) {
	q := runstore.RecordQuery{Limit: runstore.MaxPage}
	for size := 0; read < maxRecordsRead && size < maxRecordBytes; {
		page, err := in.store.ReadRecords(ctx, id, q)
		if err != nil || len(page) == 0 {
			return read, false, err
		}
		for _, rec := range page {
			read++
			size += len(rec.Value)
			q.After = rec.Key
			see(rec)
		}
	}
	return read, true, nil
}

// at returns where an item is in the journal.
func (i itemView) at() (seq int64, record int, at time.Time) {
	if i.Event != nil {
		return i.Event.Seq, 0, i.Event.Time
	}
	return i.Record.Updated.Seq, 1, i.Record.Updated.Time
}

// compare orders items by seq; at one seq the event is first, and its records are in the order of
// their times.
func (i itemView) compare(other itemView) int {
	seq, record, at := i.at()
	otherSeq, otherRecord, otherAt := other.at()
	return cmp.Or(cmp.Compare(seq, otherSeq), cmp.Compare(record, otherRecord), at.Compare(otherAt))
}
