package inspector

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

const (
	// maxLooked, 4,000, is how many runs one request looks at: 60 ms on SQLite (docs/inspector.md).
	maxLooked = 4000
	// lookPage is how many runs one read returns while a filter is applied.
	lookPage = 1000
	// maxLookedBytes, 16 MiB, bounds the summaries that one request reads. They are a few hundred bytes
	// each, except where a run ended with a long detail.
	maxLookedBytes = 16 << 20
)

// runFilter selects runs. A field that is empty selects all.
type runFilter struct {
	prefix, app, user, session, tenant string
	lease                              string // a state of a lease, or "held" for live or expired
	status                             *runstore.Status
	from, until                        time.Time
}

// filter returns the filter of a request.
func (p params) filter() (f runFilter, err error) {
	f = runFilter{prefix: p.Get("prefix"), app: p.Get("app"), user: p.Get("user"), session: p.Get("session"), tenant: p.Get("tenant")}
	if f.prefix, err = fromRef(f.prefix); err != nil {
		return f, badRequest("prefix", "%v", err)
	}
	if f.lease, err = p.one("lease", "", stateLive, stateExpired, stateFree, "held"); err != nil {
		return f, err
	}
	if word := p.Get("status"); word != "" {
		status, ok := statusOfWord(word)
		if !ok {
			return f, badRequest("status", "%.40q is neither a number nor a status of Tape, for example running", word)
		}
		f.status = &status
	}
	if f.from, err = p.time("from"); err != nil {
		return f, err
	}
	f.until, err = p.time("until")
	return f, err
}

// statusOfWord returns the status that a word or a number names.
func statusOfWord(word string) (runstore.Status, bool) {
	for s := tape.RunRunnable; s <= tape.RunCancelled; s++ {
		if s.String() == word {
			return runstore.Status(s), true
		}
	}
	n, err := strconv.ParseInt(word, 10, 32)
	return runstore.Status(n), err == nil
}

// selects reports whether the filter selects anything less than the runs of its times.
func (f runFilter) selects() bool {
	return f.prefix+f.app+f.user+f.session+f.tenant+f.lease != "" || f.status != nil
}

func (f runFilter) matches(head runstore.Run, now time.Time) bool {
	if !strings.HasPrefix(string(head.ID), f.prefix) || f.status != nil && head.Status != *f.status {
		return false
	}
	if f.lease != "" {
		state := leaseState(head, now)
		if state != f.lease && !(f.lease == "held" && state != stateFree) {
			return false
		}
	}
	if f.app+f.user+f.session+f.tenant == "" {
		return true
	}
	run, err := tape.RunOf(head)
	if err != nil {
		return false
	}
	for _, want := range []struct{ filter, value string }{{f.app, run.App}, {f.user, run.User}, {f.session, run.Session}, {f.tenant, run.Tenant}} {
		if want.filter != "" && want.filter != want.value {
			return false
		}
	}
	return true
}

// runsView is a page of runs, newest first.
type runsView struct {
	Now  time.Time  `json:"now"`
	Runs []headView `json:"runs"`
	// Exact is the run whose id is the prefix of the filter, listed or not.
	Exact *headView `json:"exact,omitempty"`
	// Looked is how many runs this request has looked at. Oldest is the creation of the last of them.
	Looked int       `json:"looked"`
	Oldest time.Time `json:"oldest,omitzero"`
	// Cursor continues; it is empty if no run follows.
	Cursor string `json:"cursor,omitempty"`
}

// runs returns a page of runs, newest first. A filter is applied to at most maxLooked runs, and for at
// most a quarter of the timeout; a page may be short, or empty, and still have a cursor.
func (in *inspector) runs(ctx context.Context, p params) (any, error) {
	f, err := p.filter()
	if err != nil {
		return nil, err
	}
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	at, err := p.cursor("runs")
	if err != nil {
		return nil, err
	}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	v := runsView{Now: now, Runs: []headView{}}
	if at == "" && f.prefix != "" && runstore.CheckRunID(runstore.RunID(f.prefix)) == nil {
		head, err := in.store.GetRun(ctx, runstore.RunID(f.prefix))
		if err == nil {
			exact := viewHead(head, now)
			v.Exact = &exact
		} else if !errors.Is(err, runstore.ErrNotFound) {
			return nil, err
		}
	}
	q := runstore.IndexQuery{
		Index: runstore.IndexRuns, Newest: true, From: f.from, Until: runstore.EndOfTime,
		After: runstore.Cursor(at), Limit: limit,
	}
	if !f.until.IsZero() {
		q.Until = f.until
	}
	if f.selects() {
		q.Limit = max(lookPage, limit)
	}
	size, began := 0, time.Now()
	for v.Looked < maxLooked && len(v.Runs) < limit && size < maxLookedBytes && time.Since(began) < in.opts.Timeout/4 {
		page, err := in.store.ScanIndex(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return v, nil
		}
		for _, e := range page {
			q.After = e.Cursor
			v.Looked++
			size += len(e.Head.Summary.Value)
			v.Oldest = e.At
			if f.matches(e.Head, now) {
				if v.Runs = append(v.Runs, viewHead(e.Head, now)); len(v.Runs) == limit {
					break
				}
			}
		}
	}
	v.Cursor = p.next("runs", string(q.After))
	return v, nil
}
