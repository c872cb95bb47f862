package bigtable

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// cachedRun is what a handle remembers of a run: the head that it last read or wrote, and what it read
// together with that head. It may be out of date. A write that relies on it notices that, because its
// predicate compares the revision. While the revision is current, all of it is: every change of a run
// replaces the revision.
type cachedRun struct {
	id       runstore.RunID
	lock     chan struct{}      // holds a value while an operation of the handle changes the run
	refs     int                // operations that hold or await the lock; guarded by runCache.mu
	answered localclock.Reading // when the last of them ended whose result came from Bigtable; guarded by runCache.mu

	known   bool
	stored  []byte // the revision's cell; nil when there is none
	head    head
	beat    int64
	former  rules.FormerGrants                 // as last read for needs.epoch
	terms   rules.TermList                     // likewise
	ended   []byte                             // likewise: the cell of columnEnded
	records map[runstore.RecordKey]*recordMeta // a nil value means that the record is absent
	all     bool                               // records has all records of the row
	results map[string]result                  // by name; nil if they were not read
	tail    tail

	pendingSeal atomic.Pointer[pendingSeal] // segments that the next write records
	sealing     atomic.Bool

	fingerprints fingerprints // of the cold records
	coldReads    int64        // keys for which cold records were read since the fingerprints were last asked for
	learning     atomic.Bool  // the fingerprints are being read
	keptBytes    int64        // head.RecordBytes after the last move, or the least since
	moving       atomic.Bool
}

// term identifies what a refusal for a lease's time depends on: the grant, and its expiry or last progress.
type term struct{ token, at int64 }

func (r *cachedRun) term(refusal error) term {
	if errors.Is(refusal, runstore.ErrNoProgress) {
		return term{r.head.Token, r.head.Progressed}
	}
	return term{r.head.Token, r.head.expiry(r.beat)}
}

// runCache is what a handle remembers of the runs that it writes to.
type runCache struct {
	mu           sync.Mutex
	all          map[runstore.RunID]*cachedRun
	fingerprints int // the weight of the fingerprints of all runs
}

// Bounds of what a handle remembers.
const (
	maxRuns    = 4096
	maxRecords = 4096      // of one run
	maxLoaded  = 256 << 10 // bytes of records in a row up to which load reads all, so that no later put reads
)

// errStalled is why a write was not sent: no earlier write of the handle to the run had a result for too long.
var errStalled = errors.New("bigtable: earlier writes of this handle to the run had no result")

// lock locks a run for an operation, and returns the backoff of the operation. Writes of one handle to one run go
// one after another: of two at the same time, the second would only find that its revision is out of date.
//
// An operation waits as long as operations before it have results, however many there are. If Bigtable does not
// answer, all of them end together and not one retry timeout after another: each when the retry timeout has
// passed since the last result, or since the operation began to wait.
func (s *engine) lock(ctx context.Context, id runstore.RunID) (*cachedRun, *outcome.Backoff, error) {
	began, r := s.clock.local.Read(), s.runs.ref(id)
	left := func() time.Duration { // the caller holds s.runs.mu
		since := began
		if since.Before(r.answered) {
			since = r.answered
		}
		return s.opts.RetryTimeout - s.clock.local.Since(since)
	}
	select {
	case r.lock <- struct{}{}:
		return r, s.newBackoff(s.opts.RetryTimeout), nil
	default:
	}
	waiting, end := context.WithCancelCause(ctx)
	defer end(nil)
	var timer *time.Timer
	s.runs.mu.Lock()
	timer = time.AfterFunc(left(), func() { // and not in the select below, where it would cost the place in the queue
		s.runs.mu.Lock()
		defer s.runs.mu.Unlock()
		if more := left(); more <= 0 {
			end(errStalled)
		} else if waiting.Err() == nil {
			timer.Reset(more)
		}
	})
	s.runs.mu.Unlock()
	defer timer.Stop()
	select {
	case r.lock <- struct{}{}:
	case <-waiting.Done():
		s.runs.unref(r)
		return nil, nil, outcome.Unavailable(outcome.Cause(ctx, context.Cause(waiting)))
	}
	s.runs.mu.Lock()
	rest := left()
	s.runs.mu.Unlock()
	if rest <= 0 {
		s.unlock(r, errStalled)
		return nil, nil, outcome.Unavailable(errStalled)
	}
	return r, s.newBackoff(rest), nil
}

// unlock unlocks a run after an operation with the given error.
func (s *engine) unlock(r *cachedRun, err error) {
	if kind := runstore.KindOf(err); kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome {
		s.runs.mu.Lock()
		r.answered = s.clock.local.Read()
		s.runs.mu.Unlock()
	}
	<-r.lock
	s.runs.unref(r)
}

// ref returns a run that evict does not drop until unref.
func (rs *runCache) ref(id runstore.RunID) *cachedRun {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.all[id]
	if r == nil {
		rs.evict()
		r = &cachedRun{id: id, lock: make(chan struct{}, 1)}
		rs.all[id] = r
	}
	r.refs++
	return r
}

func (rs *runCache) unref(r *cachedRun) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.refs--
}

// evict drops runs until there is room for another one. The caller holds rs.mu.
func (rs *runCache) evict() {
	for id, r := range rs.all {
		if len(rs.all) < maxRuns && rs.fingerprints < maxFingerprints {
			return
		}
		if r.refs == 0 {
			rs.fingerprints -= r.fingerprints.weight()
			delete(rs.all, id)
		}
	}
}

// learn remembers what was read of the run. What else the handle remembers stays if the revision is still the same.
func (r *cachedRun) learn(found *row) {
	if !r.known || string(found.stored) != string(r.stored) {
		r.forget()
		r.records = map[runstore.RecordKey]*recordMeta{}
	}
	r.known, r.stored, r.head, r.beat = true, found.stored, found.head, found.beat
}

// forget drops what the handle remembers, so that the next operation reads the run.
func (r *cachedRun) forget() {
	r.known, r.stored, r.records, r.all, r.results, r.tail = false, nil, nil, false, nil, tail{}
	r.former, r.terms, r.ended = nil, nil, nil
}

// knows reports whether the handle knows the version of a record, or that it is absent, if the handle is up to
// date. It looks among the cold records, too.
func (r *cachedRun) knows(key runstore.RecordKey) bool {
	if _, known := r.records[key]; known {
		return true
	}
	m, sure := r.fingerprints.find(r.head.moveListID(), key)
	if !r.all || !sure {
		return false
	}
	r.records[key] = m
	return true
}

// judgedHead returns the head with the former grants, in the form in which package rules judges requests for
// the lease.
func (r *cachedRun) judgedHead() rules.Head { return r.withGrants(r.head.rules(r.id, r.beat)) }

// withGrants adds the former grants, their terms and the end of the last grant to a head.
func (r *cachedRun) withGrants(h rules.Head) rules.Head {
	h.Former, h.Terms, h.Last.EndedAt = r.former, r.terms, endOf(h.Token, r.ended)
	return h
}

// endOf returns the time from a cell of columnEnded, zero if that names another token.
func endOf(token runstore.Token, cell []byte) time.Time {
	if len(cell) != 16 || int64(binary.BigEndian.Uint64(cell)) != int64(token) {
		return time.Time{}
	}
	return runstore.FromMicros(int64(binary.BigEndian.Uint64(cell[8:])))
}

// exists reports whether the run exists and was not purged.
func (r *cachedRun) exists() bool { return r.stored != nil && !r.head.Purged }
