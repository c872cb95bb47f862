package tapeserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
	"github.com/tapestore/tapestore/tapeserver/auth"
)

// ownEntries finds the entries of a feed that a principal which is limited to tenants may have: those of
// the runs of its tenants. An entry does not name the tenant, except the first one of a run. For other
// runs the tenant is read from the store, once while the feed has entries of the run. Invariants:
//
//  1. A run that is purged and begun again is another run. Its entries are numbered from 1 again, so an
//     entry whose seq does not follow the last one of its id makes ownEntries forget what it knows of the
//     id. It looks at every entry of the feed, also at those that the filter leaves out.
//  2. An entry that is older than the run that the store has now belongs to a purged run, and nobody gets
//     it, unless the run's journal has it: the clock of an engine on this machine can be set back.
//  3. Entries without a run, those of values, have no tenant.
type ownEntries struct {
	tape  *tape.Tape
	admit func(tenant string) bool
	runs  map[runstore.RunID]feedRun
}

// feedRun is what ownEntries knows of a run.
type feedRun struct {
	own   bool
	began time.Time
	last  runstore.Seq // seq of the last entry in the feed
}

// maxFeedRuns is 1,024, the number of runs that a stream remembers: 100 KB.
const maxFeedRuns = 1024

// ownEntriesOf returns the ownEntries of a stream; nil if its principal is not limited to tenants.
func (s *service) ownEntriesOf(ctx context.Context) *ownEntries {
	p, ok := limited(ctx)
	if !ok {
		return nil
	}
	return newOwnEntries(s.tape, p)
}

func newOwnEntries(t *tape.Tape, p auth.Principal) *ownEntries {
	return &ownEntries{tape: t, admit: p.Admits, runs: map[runstore.RunID]feedRun{}}
}

// of reports for each event of a page whether the principal may have it; nil means that it may have all.
// It reads the runs of entries that the filter may select, before any of them is sent, since the time for
// sending a page is bounded.
func (o *ownEntries) of(ctx context.Context, events []tail.FeedEvent, f feedFilter) ([]bool, error) {
	if o == nil {
		return nil, nil
	}
	own := make([]bool, len(events))
	for i, e := range events {
		in, ok := e.Derived.(*predicate.Input)
		run, known := o.runs[e.Run]
		if known && e.Seq <= run.last {
			delete(o.runs, e.Run)
			known = false
		}
		switch {
		case e.Err != nil:
			// A damaged part of the feed itself may be anybody's.
			if own[i] = e.Run == ""; own[i] {
				continue
			}
		case !ok || in.Entry.Run == "":
			continue
		}
		if tenant, first := tenantOfFirst(e); first {
			run, known = feedRun{own: o.admit(tenant), began: e.Time}, true
		}
		if !known && (e.Err != nil || f.names(in)) {
			var err error
			if run, err = o.read(ctx, e.Run); err != nil {
				return nil, err
			}
			known = true
		}
		if !known {
			continue
		}
		run.last = e.Seq
		if len(o.runs) >= maxFeedRuns {
			clear(o.runs)
		}
		o.runs[e.Run] = run
		if own[i] = run.own; own[i] && e.Err == nil && e.Time.Before(run.began) {
			var err error
			if own[i], err = o.inJournal(ctx, e); err != nil {
				return nil, err
			}
		}
	}
	return own, nil
}

// read reads a run. One that does not exist or cannot be read is nobody's.
func (o *ownEntries) read(ctx context.Context, id runstore.RunID) (feedRun, error) {
	run, err := o.tape.GetRun(ctx, id)
	switch {
	case errors.Is(err, tape.ErrNoSuchRun), errors.Is(err, tape.ErrFormat), errors.Is(err, runstore.ErrCorrupt):
		return feedRun{}, nil
	case err != nil:
		return feedRun{}, err
	}
	return feedRun{own: o.admit(run.Tenant), began: run.StartedAt}, nil
}

// inJournal reports whether the journal of an event's run has the event.
func (o *ownEntries) inJournal(ctx context.Context, e tail.FeedEvent) (bool, error) {
	events, err := o.tape.Store().ReadJournal(ctx, e.Run, e.Seq, 1)
	if errors.Is(err, runstore.ErrNotFound) || errors.Is(err, runstore.ErrCorrupt) || err == nil && len(events) == 0 {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return events[0].Time.Equal(e.Time) && events[0].Kind == e.Kind && bytes.Equal(events[0].Data, e.Data), nil
}

// tenantOfFirst returns the tenant in the first entry of a run; false for another entry.
func tenantOfFirst(e tail.FeedEvent) (tenant string, ok bool) {
	if e.Err != nil || e.Seq != 1 || e.Kind != "run" {
		return "", false
	}
	var payload struct {
		Status string  `json:"status"`
		Tenant *string `json:"tenant_id"`
	}
	if json.Unmarshal(e.Data, &payload) != nil || payload.Status != "running" || payload.Tenant == nil {
		return "", false
	}
	return *payload.Tenant, true
}
