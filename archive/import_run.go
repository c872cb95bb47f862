package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// importTTL is the TTL of the importer's lease. 30 s: how long the repeat of a killed import waits
	// for a run that the killed import had not finished. An importer that is slower keeps its lease
	// until another one takes it.
	importTTL = 30 * time.Second
	// partsPerRenewal is after how many parts the lease is renewed. 8: they take seconds on a slow
	// store.
	partsPerRenewal = 8
	// importTries is how often one write is tried. Engines retry by themselves first.
	importTries = 4
)

// runImport imports one run, under the run's lease, or compares it with a run that the target has. Which of
// the two is decided when the first part is full, or at the end.
type runImport struct {
	*importer
	h      head
	fence  runstore.Fence // of a run that is imported
	redone bool
	done   Counts

	present     *comparison  // of a run that the target has
	differences []Difference // from it

	records []runstore.PlacedRecord // of the next part
	events  []runstore.Event
	size    int
	parts   int

	last     []runstore.PlacedRecord // of the last part: those with index entries
	lastSize int
	summary  *runstore.PlacedRecord // of the last part
}

// begun reports whether a part was written or compared.
func (w *runImport) begun() bool { return w.present != nil || !w.fence.IsZero() }

// wrap adds the run to an error.
func (w *runImport) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("import run %q: %w", string(w.h.ID), err)
}

// create creates the run with a lease of the importer. It reports true if the target has the run
// already, imported completely or never imported. A run whose import has not finished is purged first.
func (w *runImport) create(ctx context.Context) (exists bool, err error) {
	for {
		created, err := w.insert(ctx)
		if err != nil {
			return false, err
		}
		if created.New {
			w.fence = created.Lease.Fence()
			if w.fence.Token() <= w.h.Token { // only a restoration gets here
				return false, errors.Join(ErrNotPurgedHere, w.purge(ctx))
			}
			return false, nil
		}
		if created.Run.Status != StatusImporting {
			w.fence = runstore.Fence{} // of an import that another one has finished
			return true, nil
		}
		again, err := w.takeOver(ctx)
		if err != nil {
			return false, err
		}
		w.redone = w.redone || again
	}
}

// insert creates the run unless it exists.
func (w *runImport) insert(ctx context.Context) (created runstore.Created, err error) {
	spec := runstore.RunSpec{
		ID: w.h.ID, Status: StatusImporting, Unlisted: w.h.Unlisted,
		Lease: &runstore.LeaseSpec{Owner: w.opts.Owner, Reactor: "import", TTL: importTTL, Grant: runstore.NewGrantID()},
	}
	err = w.try(ctx, func() (err error) {
		created, err = w.store.CreateRun(ctx, spec)
		return err
	})
	return created, err
}

// takeOver takes the lease of a run whose import has not finished, once the lease of that import has
// expired, and purges the run. It reports false if the run is in another state by now.
func (w *runImport) takeOver(ctx context.Context) (purged bool, err error) {
	req := runstore.AcquireRequest{
		Run:       w.h.ID,
		LeaseSpec: runstore.LeaseSpec{Owner: w.opts.Owner, Reactor: "import", TTL: importTTL, Grant: runstore.NewGrantID()},
		Guards:    []runstore.Guard{runstore.InStatus(StatusImporting)},
	}
	var granted runstore.Granted
	acquire := func() error {
		return w.try(ctx, func() (err error) {
			granted, err = w.store.AcquireLease(ctx, req)
			return err
		})
	}
	err = acquire()
	var held *runstore.LeaseHeldError
	if errors.As(err, &held) {
		// The lease of an import that was killed ends; that of one that is under way does not.
		if err := sleep(ctx, held.Remaining+10*time.Millisecond); err != nil {
			return false, err
		}
		err = acquire()
	}
	switch {
	case errors.Is(err, runstore.ErrConflict), errors.Is(err, runstore.ErrNotFound):
		return false, nil
	case errors.Is(err, runstore.ErrLeaseHeld):
		return false, fmt.Errorf("another import holds the lease of this run: %w", err)
	case err != nil:
		return false, err
	}
	w.fence = granted.Fence()
	return true, w.purge(ctx)
}

// purge removes what was imported.
func (w *runImport) purge(ctx context.Context) error {
	b := runstore.NewBatch(w.h.ID, w.fence, runstore.InStatus(StatusImporting))
	b.Purge = true
	err := w.try(ctx, func() error {
		_, err := w.store.Commit(ctx, b)
		return err
	})
	if errors.Is(err, runstore.ErrNotFound) { // purged, and the reply was lost
		return nil
	}
	return err
}

// write imports a part. After an unknown outcome it finds out whether the part was applied, before the
// part is repeated and after a repeat that was refused: the first copy may have been applied meanwhile.
func (w *runImport) write(ctx context.Context, part runstore.Import) error {
	part.Fence = w.fence
	lost := false
	return w.try(ctx, func() error {
		if lost {
			if applied, err := w.applied(ctx, part); applied || err != nil {
				return err
			}
		}
		_, err := w.mover.Import(ctx, part)
		if lost && (errors.Is(err, runstore.ErrConflict) || errors.Is(err, runstore.ErrFenced)) {
			if applied, failed := w.applied(ctx, part); applied || failed != nil {
				return failed
			}
		}
		lost = lost || errors.Is(err, runstore.ErrUnknownOutcome)
		return err
	})
}

// applied reports whether the store has a part of this import. A part is atomic, so one item stands for
// all of it. Without the run's last token, another import has taken the run over, and a repeat of the
// part is fenced. But after the last part, a driver may have taken over the run that this import has
// finished, or another import has finished it: which of the two is unknown.
func (w *runImport) applied(ctx context.Context, part runstore.Import) (bool, error) {
	run, err := w.store.GetRun(ctx, w.h.ID)
	switch {
	case errors.Is(err, runstore.ErrNotFound): // purged by another import
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: %w", runstore.ErrUnknownOutcome, err)
	case part.Release && run.Status != StatusImporting && run.Token != w.fence.Token():
		return false, fmt.Errorf("%w: the run is imported, by this import or by another one, and has a new holder; repeat the import", runstore.ErrUnknownOutcome)
	case run.Token != w.fence.Token():
		return false, nil
	case part.Release:
		return run.Status != StatusImporting, nil
	case len(part.Events) > 0:
		return run.LastSeq >= part.Events[len(part.Events)-1].Seq, nil
	}
	found, err := w.store.ReadRecords(ctx, w.h.ID, runstore.RecordQuery{Keys: []runstore.RecordKey{part.Records[0].Key}})
	if err != nil {
		return false, fmt.Errorf("%w: %w", runstore.ErrUnknownOutcome, err)
	}
	return len(found) > 0, nil
}

// try repeats a write that is safe to repeat, as long as the store is unavailable.
func (w *runImport) try(ctx context.Context, f func() error) (err error) {
	for n := range importTries {
		if n > 0 {
			if err := sleep(ctx, 100*time.Millisecond<<n); err != nil {
				return err
			}
		}
		err = f()
		if !errors.Is(err, runstore.ErrUnavailable) && !errors.Is(err, runstore.ErrUnknownOutcome) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// sleep waits for d, or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
