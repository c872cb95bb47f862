package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The defaults of [Options].
const (
	// DefaultMaxRuns is 32,768: with ids of the longest size their state takes 18 MiB.
	DefaultMaxRuns = 1 << 15
	// DefaultFeedLag is a minute: longer than a transaction that delays the feed may stay idle.
	DefaultFeedLag = time.Minute
)

// Options configures [Check]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// Found is called for each finding, one call at a time, before Check returns.
	Found func(Finding)
	// Indexes are the indexes of records to check. The indexes of runs are always checked.
	Indexes []runstore.IndexName
	// MaxRuns bounds how many runs are compared with one reading of the feed. Default
	// [DefaultMaxRuns].
	MaxRuns int
	// FeedLag is how long after its commit an event may be missing in the feed, on the store clock.
	// Default [DefaultFeedLag].
	FeedLag time.Duration
}

// Kind is the kind of a finding.
type Kind string

// The kinds of findings.
const (
	// KindToken: a token falls, or is one that the store cannot have granted.
	KindToken Kind = "token"
	// KindOwner: one token has two owners, or an event has an owner and no token, or a token and no
	// owner.
	KindOwner Kind = "owner"
	// KindTerm: the terms that the store lists overlap, or contradict the head of the run.
	KindTerm Kind = "term"
	// KindSeq: the journal is not dense, or does not end at the run's last seq.
	KindSeq Kind = "seq"
	// KindHead: the head of a run contradicts itself.
	KindHead Kind = "head"
	// KindRecord: a record contradicts the journal or itself.
	KindRecord Kind = "record"
	// KindIndex: an index has an entry that is not true, or lacks one.
	KindIndex Kind = "index"
	// KindFeed: the feed differs from the journal, or its positions do not rise.
	KindFeed Kind = "feed"
	// KindDamaged: the store reports that stored data is corrupt (runstore.ErrCorrupt).
	KindDamaged Kind = "damaged"
	// KindClock: times that contradict the order of the commits. Every finding of this kind is a
	// warning.
	KindClock Kind = "clock"
)

// Finding is one contradiction in the stored data. A field that does not apply is zero.
type Finding struct {
	Kind     Kind
	Run      runstore.RunID
	Seq      runstore.Seq
	Key      runstore.RecordKey
	Version  runstore.Version
	Index    runstore.IndexName
	Position runstore.Position
	// Problem describes the contradiction.
	Problem string

	mark int64 // distinguishes findings whose other fields are equal
}

// Warning reports whether the finding may have a cause other than a corruption.
func (f Finding) Warning() bool { return f.Kind == KindClock }

// String returns the finding on one line.
func (f Finding) String() string {
	s := string(f.Kind)
	if f.Run != "" {
		s += fmt.Sprintf(" run %q", string(f.Run))
	}
	if f.Seq != 0 {
		s += fmt.Sprintf(" seq %d", f.Seq)
	}
	if f.Index != "" {
		s += fmt.Sprintf(" index %q", string(f.Index))
	}
	if f.Key != "" {
		s += fmt.Sprintf(" record %q", string(f.Key))
	}
	if f.Version != 0 {
		s += fmt.Sprintf(" version %d", f.Version)
	}
	if f.Position != 0 {
		s += fmt.Sprintf(" position %d", f.Position)
	}
	return s + ": " + f.Problem
}

// identity returns the finding without the part that may differ between two readings.
func (f Finding) identity() Finding {
	f.Problem = ""
	return f
}

// Report counts what [Check] has read and found.
type Report struct {
	// Runs counts the runs, Unlisted those of them that no list of runs shows.
	Runs, Unlisted int64
	// Events counts the events of all journals, Terms the tokens among them, FeedEvents the events
	// of the feed.
	Events, Terms, FeedEvents int64
	// Records counts records, Entries the entries of the indexes.
	Records, Entries int64
	// FeedPending counts runs with events that the feed does not show yet.
	FeedPending int64
	// Passes is how often the feed was read.
	Passes int64
	// Findings counts corruptions, Warnings the findings that may have another cause.
	Findings, Warnings int64
	// Suppressed counts contradictions of the first reading that were neither confirmed nor
	// reported, because too many were found at once. SuppressedWarnings counts those that would have been
	// warnings; Suppressed does not contain them.
	Suppressed, SuppressedWarnings int64
}

// The bounds of what is kept of corruptions until they are confirmed, and as many of warnings: 20 of a run
// and 2,000 of a partition, which take 3 MiB with keys of the longest size.
const (
	maxPerRun = 20
	maxKept   = 2000
)

// checker is the state of one Check.
type checker struct {
	store  runstore.RunStore
	opts   Options
	seed   maphash.Seed
	report Report

	epoch        runstore.Epoch // the store's current epoch when it was last read
	epochs       runstore.EpochManager
	kept         int              // the corruptions of the present partition
	keptWarnings int              // its warnings
	reported     map[Finding]bool // identities, up to maxKept: a scan is read once for each partition
}

// Check reads the whole store and reports what contradicts the contract; the package comment lists
// what is checked. It returns when everything was read, the context ends or a read fails; the report
// counts what was read until then. Findings are no error.
//
// Errors: ErrInvalid for invalid options, else the first error of a read, except ErrCorrupt, which
// is a finding.
func Check(ctx context.Context, store runstore.RunStore, opts *Options) (Report, error) {
	c := &checker{store: store, seed: maphash.MakeSeed(), reported: map[Finding]bool{}}
	if opts != nil {
		c.opts = *opts
	}
	if err := c.opts.resolve(); err != nil {
		return Report{}, err
	}
	c.epochs, _ = runstore.As[runstore.EpochManager](store)
	if err := c.readEpoch(ctx); err != nil {
		return c.report, err
	}
	for first := uint64(0); ; {
		last, err := c.checkPartition(ctx, first)
		if err != nil || last == math.MaxUint64 {
			return c.report, err
		}
		first = last + 1
	}
}

// resolve fills in the defaults and refuses invalid options.
func (o *Options) resolve() error {
	invalid := func(field, format string, args ...any) error {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
	}
	if o.Found == nil {
		o.Found = func(Finding) {}
	}
	if o.MaxRuns == 0 {
		o.MaxRuns = DefaultMaxRuns
	}
	if o.FeedLag == 0 {
		o.FeedLag = DefaultFeedLag
	}
	var faults []error
	if o.MaxRuns < 0 {
		faults = append(faults, invalid("max runs", "%d is negative", o.MaxRuns))
	}
	if o.FeedLag < 0 {
		faults = append(faults, invalid("feed lag", "%v is negative", o.FeedLag))
	}
	for i, index := range o.Indexes {
		field := fmt.Sprintf("indexes[%d]", i)
		switch {
		case index == runstore.IndexRuns || index == runstore.IndexRunnable:
			faults = append(faults, invalid(field, "%q is no index of records, and is always checked", string(index)))
		case index == "" || len(index) > runstore.MaxIndexName:
			faults = append(faults, invalid(field, "has %d bytes, the limits are 1 and %d", len(index), runstore.MaxIndexName))
		}
	}
	return errors.Join(faults...)
}

// readEpoch reads the store's current epoch. A store without epochs stays in epoch 0.
func (c *checker) readEpoch(ctx context.Context) error {
	if c.epochs == nil {
		return nil
	}
	all, err := c.epochs.Epochs(ctx)
	if err == nil && len(all) > 0 {
		c.epoch = max(c.epoch, all[len(all)-1].Epoch)
	}
	return err
}

// publish reports a confirmed finding, once.
func (c *checker) publish(f Finding) {
	if c.reported[f.identity()] {
		return
	}
	if len(c.reported) < maxKept {
		c.reported[f.identity()] = true
	}
	if f.Warning() {
		c.report.Warnings++
	} else {
		c.report.Findings++
	}
	c.opts.Found(f)
}

// damaged reports whether err is a finding instead of an error of Check.
func damaged(err error) bool { return errors.Is(err, runstore.ErrCorrupt) }
