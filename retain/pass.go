package retain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// Options configures [Pass].
type Options struct {
	Policy
	// Archive is where runs go before they are purged; nil purges without an archive.
	Archive Target
	// Label names the store in the archives, up to 256 bytes. It must hold no password.
	Label string
	// Operator is the name under which the journal of admin.OperationsRun records that the pass purges
	// runs, before the first purge and at the end. Required unless DryRun.
	Operator runstore.Owner
	// DryRun decides and counts, and neither archives nor purges.
	DryRun bool
	// MaxRuns ends the pass after so many runs were purged, or would have been; 0 is no limit.
	MaxRuns int64
	// Pause is called before each run that is read; it limits the pace, and its error ends the pass. Nil
	// is no limit.
	Pause func(context.Context) error
	// Decided is called for each run that was, or would be, purged, and for each that failed.
	Decided func(Decision)
}

// Decision is what a pass did with one run.
type Decision struct {
	Run   runstore.RunID
	Ended time.Time // on the store clock
	// Records and Events are what the run has.
	Records, Events int64
	// Object is the name of its archive; empty without a target.
	Object string
	// Purged is false in a dry run and after an error.
	Purged bool
	// Err is why the run was neither purged nor kept. After runstore.ErrUnknownOutcome it may have been
	// purged; its archive is complete.
	Err error
}

// Report counts what a pass did.
type Report struct {
	// Scanned counts the runs that were created before the window.
	Scanned int64
	// Purged counts the runs that were purged, or would be, and Records and Events what they had.
	Purged, Records, Events int64
	// Archived counts the objects that were written, and Reused those that an earlier pass had written.
	Archived, Reused int64
	// Gone counts the runs that another process purged meanwhile.
	Gone int64
	// Kept counts the runs that do not qualify, by their reasons.
	Kept map[Reason]int64
	// Failed counts the runs that could not be archived or purged, and First is the error of the first.
	Failed int64
	First  error
	// Damaged counts those of Failed that are damaged in the store.
	Damaged int64
	// More reports that the pass ended at MaxRuns.
	More bool
	// Complete reports that the pass came to its end, or to MaxRuns.
	Complete bool
}

// ErrFailed reports that a pass went through all runs, and some of them could not be archived or purged.
var ErrFailed = errors.New("some runs could not be archived or purged")

// runsError reports that some runs failed, and nothing else.
type runsError struct{ error }

func (e runsError) Unwrap() error { return e.error }

// onlyRuns reports whether an error consists of nothing but runsErrors.
func onlyRuns(err error) bool {
	switch err := err.(type) {
	case runsError:
		return true
	case interface{ Unwrap() error }:
		return onlyRuns(err.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(err.Unwrap(), func(one error) bool { return !onlyRuns(one) })
	}
	return false
}

// maxFailuresInARow ends a pass: 20 runs in a row are no accident, the store or the target is away.
const maxFailuresInARow = 20

// Pass archives and purges the runs that qualify, one after the other. It holds one page of the scan and
// a few pages of one run in memory. A pass that was interrupted is repeated: purged runs are not scanned
// again, and archives that are complete are used.
//
// An error with one run is counted, and the pass continues, but it ends after 20 in a row. Runs that are
// damaged in the store are none of the 20.
//
// Errors: ErrInvalid for the options; ErrUnsupported if the store is no runstore.Mover; those of the scan;
// ErrFailed, which wraps the first error with a run.
func Pass(ctx context.Context, store runstore.RunStore, opts Options) (Report, error) {
	p := &pass{store: store, opts: opts, report: Report{Kept: map[Reason]int64{}}}
	if err := opts.check(); err != nil {
		return p.report, err
	}
	var ok bool
	if p.mover, ok = runstore.As[runstore.Mover](store); !ok {
		return p.report, &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "store", Problem: "its adapter does not implement runstore.Mover"}
	}
	if opts.Operator == "" && !opts.DryRun {
		return p.report, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "operator", Problem: "is missing"}
	}
	if opts.Decided == nil {
		p.opts.Decided = func(Decision) {}
	}
	if opts.Pause == nil {
		p.opts.Pause = func(context.Context) error { return nil }
	}
	err := p.scan(ctx)
	err = p.recordEnd(ctx, err)
	if p.report.Failed > 0 && !errors.Is(err, ErrFailed) {
		err = errors.Join(err, runsError{fmt.Errorf("%w: %d, the first: %w", ErrFailed, p.report.Failed, p.report.First)})
	}
	return p.report, err
}

// pass is the state of one pass.
type pass struct {
	store  runstore.RunStore
	mover  runstore.Mover
	opts   Options
	report Report
	now    time.Time // the store clock at the start: later runs are kept until the next pass
	inARow int       // failures
	began  bool      // the journal of operations has the intent
}

func (p *pass) scan(ctx context.Context) (err error) {
	if p.now, err = p.store.Now(ctx); err != nil {
		return err
	}
	until := p.now.Add(-p.opts.Journals)
	if !until.After(time.Unix(0, 0)) { // before all times of a store, and zero would mean now
		p.report.Complete = true
		return nil
	}
	q := runstore.IndexQuery{Index: runstore.IndexRuns, Until: until, Limit: scanPage}
	for {
		page, err := p.store.ScanIndex(ctx, q)
		if err != nil {
			return fmt.Errorf("scan the runs: %w", err)
		}
		if len(page) == 0 {
			p.report.Complete = true
			return nil
		}
		for _, entry := range page {
			p.report.Scanned++
			if err := p.opts.judge(entry.Head, p.now); err != nil {
				p.keep(err)
				continue
			}
			if err := p.one(ctx, entry.Run); err != nil {
				return err
			}
			if p.opts.MaxRuns > 0 && p.report.Purged >= p.opts.MaxRuns {
				p.report.More, p.report.Complete = true, true
				return nil
			}
		}
		q.After = page[len(page)-1].Cursor
	}
}

// scanPage is the size of a page of the scan, 200: the heads of a page have summaries, and one that is
// decided on minutes after it was read is read again anyway.
const scanPage = 200

// keep counts a run that is kept, and reports whether err says so.
func (p *pass) keep(err error) bool {
	var kept keptError
	if !errors.As(err, &kept) {
		return false
	}
	p.report.Kept[kept.reason]++
	return true
}

// one handles a run whose head qualifies. Its error ends the pass.
func (p *pass) one(ctx context.Context, id runstore.RunID) error {
	if err := p.opts.Pause(ctx); err != nil {
		return err
	}
	d := Decision{Run: id}
	done, err := p.handle(ctx, &d)
	switch {
	case p.keep(err):
		p.inARow = 0
		return nil
	case ctx.Err() != nil && err != nil && runstore.OutcomeOf(err) != runstore.Unknown:
		return errors.Join(context.Cause(ctx), err)
	case err != nil:
		d.Err = fmt.Errorf("run %q: %w", string(id), err)
		p.opts.Decided(d)
		if p.report.Failed++; p.report.First == nil {
			p.report.First = d.Err
		}
		if errors.As(err, new(damagedError)) { // it stays so: it must not keep other runs from their turn
			p.report.Damaged++
			return context.Cause(ctx)
		}
		if p.inARow++; p.inARow == maxFailuresInARow {
			return fmt.Errorf("%w: %d in a row, the last: %w", ErrFailed, p.inARow, d.Err)
		}
		return context.Cause(ctx)
	case !done:
		p.inARow = 0
		p.report.Gone++
		return nil
	}
	p.inARow = 0
	d.Purged = !p.opts.DryRun
	p.report.Purged++
	p.report.Records += d.Records
	p.report.Events += d.Events
	p.opts.Decided(d)
	return nil
}

// damagedError is the error of a run that is damaged in the store. Damage of an object of the archive also
// matches runstore.ErrCorrupt.
type damagedError struct{ error }

func (e damagedError) Unwrap() error { return e.error }

// handle reads, archives and purges a run. It returns false if the run is gone.
func (p *pass) handle(ctx context.Context, d *Decision) (done bool, err error) {
	c, found, err := p.candidate(ctx, d.Run)
	if errors.Is(err, runstore.ErrCorrupt) {
		err = damagedError{err}
	}
	if err != nil || !found {
		return false, err
	}
	d.Ended, d.Records, d.Events = c.ended, c.Records, c.Events
	if p.opts.Archive != nil {
		d.Object = ObjectName(c.RunState)
	}
	if p.opts.DryRun {
		return true, nil
	}
	if p.opts.Archive != nil {
		found, err := p.archive(ctx, c, d.Object)
		if err != nil || !found {
			return false, err
		}
	}
	if err := p.recordIntent(ctx); err != nil {
		return false, err
	}
	return p.purge(ctx, c)
}

// operation is the name of a pass in the journal of operations.
const operation = "retain"

// recordIntent records that the pass purges runs, once (a write-ahead intent).
func (p *pass) recordIntent(ctx context.Context) error {
	if p.began {
		return nil
	}
	to := "no archive"
	if p.opts.Archive != nil {
		to = "archive " + p.opts.Archive.String()
	}
	err := admin.RecordOperation(ctx, p.store, admin.OperationEntry{
		Operation: operation, Stage: admin.StageIntended, Operator: p.opts.Operator, Reason: fmt.Sprintf("journals older than %v, %s", p.opts.Journals, to),
	})
	if p.began = err == nil; err != nil {
		return fmt.Errorf("record the intent in the journal of operations: %w", err)
	}
	return nil
}

// recordEnd records what the pass has purged, also after ctx has ended. It returns the error of the pass.
func (p *pass) recordEnd(ctx context.Context, failed error) error {
	if !p.began {
		return failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	entry := admin.OperationEntry{
		Operation: operation, Stage: admin.StageDone, Operator: p.opts.Operator, Reason: fmt.Sprintf("purged %d runs, %d failed", p.report.Purged, p.report.Failed),
	}
	if failed != nil {
		entry.Problem = failed.Error()
	}
	if err := admin.RecordOperation(ctx, p.store, entry); err != nil {
		return errors.Join(failed, fmt.Errorf("record the end in the journal of operations: %w", err))
	}
	return failed
}

// candidate is a state of a run that qualifies, with what guards its purge.
type candidate struct {
	archive.RunState
	ended    time.Time
	versions []runstore.Guard
	records  recordSum
}

// candidate reads a run. The error is a keptError if it does not qualify.
func (p *pass) candidate(ctx context.Context, id runstore.RunID) (c candidate, found bool, err error) {
	state, found, err := archive.ReadRunState(ctx, p.store, id, archive.StateVisitor{
		Head: func(head runstore.Run) error {
			c = candidate{}
			c.ended, _ = p.opts.Ended(head)
			return p.opts.judge(head, p.now)
		},
		Record: func(r runstore.PlacedRecord) error {
			c.records.add(r)
			if len(c.versions) < maxVersions {
				c.versions = append(c.versions, runstore.AtVersion(r.Key, r.Version))
			}
			return p.opts.judgeRecord(r)
		},
	})
	if err != nil || !found {
		return candidate{}, false, p.sweep(ctx, id, err)
	}
	if state.Changed.After(p.now.Add(-p.opts.Journals)) {
		return candidate{}, false, keptError{reason: KeptYoung}
	}
	c.RunState = state
	return c, true, nil
}
