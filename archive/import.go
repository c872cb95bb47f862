package archive

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tapestore/tapestore/runstore"
)

// ImportOptions configures [Import]. A zero field takes its default; nil options mean all defaults.
type ImportOptions struct {
	// Owner names the importer in leases. Default "import".
	Owner runstore.Owner
	// RaiseEpoch allows Import to raise the epoch of a target that has runs, which ends all their
	// leases. The epoch of an empty target is raised in any case.
	RaiseEpoch bool
	// Restore puts runs back into the store that they were purged from. The epoch is not raised: the row
	// of a purged run keeps its token, so the importer's token is above those of the archive. A run whose
	// token is not, because the store never had the run, is refused with [ErrNotPurgedHere].
	Restore bool
	// MaxConflicts bounds the conflicts that are reported. Default 100.
	MaxConflicts int
	// Conflict is called for each difference between a run of the archive and one that the target has
	// already.
	Conflict func(Difference)
	// Copied is called for each run that was imported or present, so that the target has the state of the
	// archive.
	Copied func(runstore.RunID)
	// Progress is called after each run with the report until then.
	Progress func(ImportReport)
}

// ImportReport counts what [Import] did.
type ImportReport struct {
	// Imported counts what was written.
	Imported Counts
	// Present counts the runs that the target had already, equal to those of the archive.
	Present int64
	// Conflicts counts the runs that the target had already, and that differ.
	Conflicts int64
	// Redone counts the runs that an earlier import had begun, and that were purged and imported anew.
	Redone int64
	// Epoch is the epoch of the target.
	Epoch runstore.Epoch
}

// ErrConflicts reports that the target has runs that differ from those of the archive. Import has not
// changed them, and has imported all others.
var ErrConflicts = errors.New("the target has runs that differ from those of the archive")

// ErrEpoch reports that the epoch of the target must be raised first, see [ImportOptions.RaiseEpoch].
var ErrEpoch = errors.New("the epoch of the target is not above that of the archive")

// ErrNotPurgedHere reports that a run cannot be restored, because the target does not remember its token.
var ErrNotPurgedHere = errors.New("the target does not remember the tokens of the run: it is not the store that the run was purged from, so import it with a new epoch")

// Import writes the runs of an archive to a store. It may be repeated: see the package comment. An
// archive that is not a stream should be checked first ([Check]), because Import finds damage only when
// it reads it. A run with damage is not finished.
//
// Errors: *DamageError; ErrConflicts; ErrEpoch; ErrUnsupported if the target is no runstore.Mover or no
// runstore.EpochManager, or the archive is of a newer format; ErrNotPurgedHere; ErrLeaseHeld if another import holds a
// run; ErrFenced if another import has taken a run over; ErrUnknownOutcome if the reply to the last part of a
// run was lost, and the run is complete with a new holder; those of the store.
func Import(ctx context.Context, from *Source, to runstore.RunStore, opts *ImportOptions) (ImportReport, error) {
	im := &importer{store: to}
	if opts != nil {
		im.opts = *opts
	}
	if err := im.resolve(); err != nil {
		return ImportReport{}, err
	}
	im.workers, im.ctx = errgroup.WithContext(ctx)
	im.workers.SetLimit(importWorkers)
	_, err := from.read(ctx, func(h *header) error { return im.start(ctx, h) }, im)
	if failed := im.workers.Wait(); failed != nil && (err == nil || ctx.Err() == nil && errors.Is(err, context.Canceled)) {
		err = failed
	}
	if err == nil && im.report.Conflicts > 0 {
		err = fmt.Errorf("%w: %d runs", ErrConflicts, im.report.Conflicts)
	}
	return im.report, err
}

// importWorkers is how many runs are imported at once. 8: enough for the group commit of SQLite and
// Postgres, and at most 8 parts are in memory.
const importWorkers = 8

func (im *importer) resolve() error {
	if im.opts.Owner == "" {
		im.opts.Owner = "import"
	}
	if im.opts.MaxConflicts <= 0 {
		im.opts.MaxConflicts = defaultDifferences
	}
	if im.opts.Conflict == nil {
		im.opts.Conflict = func(Difference) {}
	}
	if im.opts.Copied == nil {
		im.opts.Copied = func(runstore.RunID) {}
	}
	if im.opts.Progress == nil {
		im.opts.Progress = func(ImportReport) {}
	}
	unsupported := func(what string) error {
		return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "target", Problem: "its adapter does not implement " + what}
	}
	var ok bool
	if im.mover, ok = runstore.As[runstore.Mover](im.store); !ok {
		return unsupported("runstore.Mover")
	}
	if im.epochs, ok = runstore.As[runstore.EpochManager](im.store); !ok {
		return unsupported("runstore.EpochManager")
	}
	return nil
}

// importer is the sink of an import. Runs that are small enough for one part are collected, and workers
// write them while the next lines are read.
type importer struct {
	store  runstore.RunStore
	mover  runstore.Mover
	epochs runstore.EpochManager
	opts   ImportOptions

	run     *runImport // the present one
	workers *errgroup.Group
	ctx     context.Context // of the workers

	mu     sync.Mutex // guards the following, and serializes the calls of the options
	report ImportReport
	shown  int // differences
}

// start raises the epoch of the target above that of the archive, once: a new epoch would fence the runs
// that are being imported.
func (im *importer) start(ctx context.Context, h *header) error {
	current, err := im.currentEpoch(ctx)
	if err != nil {
		return err
	}
	im.setEpoch(current)
	if im.opts.Restore && current < runstore.Epoch(h.Epoch) {
		return fmt.Errorf("%w: it is in epoch %d, the archive is of epoch %d", ErrNotPurgedHere, current, h.Epoch)
	}
	if im.opts.Restore || current > runstore.Epoch(h.Epoch) {
		return nil
	}
	if !im.opts.RaiseEpoch {
		page, err := im.mover.ScanRuns(ctx, "", 1)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			return fmt.Errorf("%w: it is in epoch %d, the archive is of epoch %d, and a new epoch ends the leases of its runs", ErrEpoch, current, h.Epoch)
		}
	}
	reasons := map[runstore.Epoch]string{}
	for _, e := range h.Epochs {
		reasons[runstore.Epoch(e.Epoch)] = string(e.Reason)
	}
	for current <= runstore.Epoch(h.Epoch) {
		reason := fmt.Sprintf("import of archive %s of epoch %d", h.Archive, h.Epoch)
		if was := reasons[current+1]; was != "" && current < runstore.Epoch(h.Epoch) {
			reason = fmt.Sprintf("import of archive %s; epoch %d of its source: %s", h.Archive, current+1, was)
		}
		reason = reason[:min(len(reason), runstore.MaxOwner)]
		if _, err := im.epochs.RaiseEpoch(ctx, reason); err != nil {
			return fmt.Errorf("raise the epoch of the target: %w", err)
		}
		if current, err = im.currentEpoch(ctx); err != nil {
			return err
		}
	}
	im.setEpoch(current)
	return nil
}

func (im *importer) setEpoch(e runstore.Epoch) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.report.Epoch = e
}

func (im *importer) currentEpoch(ctx context.Context) (runstore.Epoch, error) {
	all, err := im.epochs.Epochs(ctx)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[len(all)-1].Epoch, nil
}

func (im *importer) head(_ context.Context, h head) error {
	if h.Token.Epoch() >= im.report.Epoch && !im.opts.Restore {
		return fmt.Errorf("run %q has token %v: %w, %d", string(h.ID), h.Token, ErrEpoch, im.report.Epoch)
	}
	im.run = &runImport{importer: im, h: h}
	return im.ctx.Err() // a worker has failed
}

func (im *importer) record(ctx context.Context, r runstore.PlacedRecord) error {
	return im.run.wrap(im.run.addRecord(ctx, r))
}

func (im *importer) event(ctx context.Context, e runstore.Event) error {
	return im.run.wrap(im.run.addEvent(ctx, e))
}

func (im *importer) end(ctx context.Context) error {
	w := im.run
	im.run = nil
	if w.begun() {
		return w.wrap(w.finish(ctx))
	}
	im.workers.Go(func() error { return w.wrap(w.finish(im.ctx)) })
	return nil
}

// discard undoes what was imported of the present run. The export has read it once more, so its lines
// follow. A run that the target has already is left alone, and the differences from the lines that are
// void are not reported.
func (im *importer) discard(ctx context.Context) error {
	w := im.run
	im.run = nil
	if w.present != nil || !w.begun() {
		return nil
	}
	return w.wrap(w.purge(ctx))
}

// finished counts a run, and reports its differences as long as there are few.
func (im *importer) finished(w *runImport) {
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case w.present == nil:
		im.report.Imported.add(w.done)
		if w.redone {
			im.report.Redone++
		}
		im.opts.Copied(w.h.ID)
	case w.present.found > 0:
		im.report.Conflicts++
		for _, d := range w.differences {
			if im.shown++; im.shown <= im.opts.MaxConflicts {
				im.opts.Conflict(d)
			}
		}
	default:
		im.report.Present++
		im.opts.Copied(w.h.ID)
	}
	im.opts.Progress(im.report)
}
