package retain

import (
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// Policy says which runs are archived and purged.
type Policy struct {
	// Journals is the age at which a run is purged; see the package comment. Above 0.
	Journals time.Duration
	// Feed is how far a reader of the feed may be behind without losing an event. At most Journals; 0 is
	// no promise.
	Feed time.Duration
	// Ended returns when a run ended, and false for a run that has not ended or is not to be purged. It
	// must decide by the run alone.
	Ended func(runstore.Run) (at time.Time, ok bool)
	// Settled reports whether a run may be purged although one of its records has an entry in the index.
	// Nil accepts no index.
	Settled func(runstore.IndexName) bool
}

func (p Policy) check() error {
	invalid := func(field, format string, args ...any) error {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
	}
	switch {
	case p.Journals <= 0:
		return invalid("journals", "%v is not above 0", p.Journals)
	case p.Feed < 0:
		return invalid("feed", "%v is negative", p.Feed)
	case p.Feed > p.Journals:
		return invalid("feed", "%v is longer than journals, %v: a purge takes the events of a run out of the feed", p.Feed, p.Journals)
	case p.Ended == nil:
		return invalid("ended", "is missing")
	}
	return nil
}

// Reason is why a run was kept.
type Reason string

// The reasons for keeping a run.
const (
	KeptActive   Reason = "active"   // Policy.Ended returned false
	KeptYoung    Reason = "young"    // it ended, or was changed, or leased, within the window
	KeptLeased   Reason = "leased"   // a lease is live
	KeptRunnable Reason = "runnable" // it wants a driver
	KeptQueued   Reason = "queued"   // a record is in a queue
	KeptStep     Reason = "step"     // it takes part in a step over two runs
	KeptChanged  Reason = "changed"  // it was changed while it was archived
)

// keptError ends the reading of a run that is kept.
type keptError struct {
	reason Reason
	mark   bool // a mark of a step over two runs is there
}

func (e keptError) Error() string { return "kept: " + string(e.reason) }

// judge decides on a run by its head. The store clock was at now or later when the head was read.
func (p Policy) judge(head runstore.Run, now time.Time) error {
	cutoff := now.Add(-p.Journals)
	switch at, ended := p.Ended(head); {
	case !ended:
		return keptError{reason: KeptActive}
	case head.Live(now):
		return keptError{reason: KeptLeased}
	case !head.RunnableAt.IsZero():
		return keptError{reason: KeptRunnable}
	case at.After(cutoff), head.CreatedAt.After(cutoff), head.ExpiresAt.After(cutoff), head.Summary.Updated.Time.After(cutoff):
		return keptError{reason: KeptYoung}
	}
	return nil
}

// judgeRecord decides on a run by one of its records.
func (p Policy) judgeRecord(r runstore.PlacedRecord) error {
	if strings.HasPrefix(string(r.Key), string(crossrun.Reserved)) {
		return keptError{KeptStep, r.Key != crossrun.IntentKey}
	}
	for _, place := range r.Index {
		if p.Settled == nil || !p.Settled(place.Index) {
			return keptError{reason: KeptQueued}
		}
	}
	return nil
}
