package faultystores

import (
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// moveStores move runs wrongly.
func moveStores() []faultyStore {
	const moves, twice, unfenced = "I4/a-moved-run-is-as-it-was", "I4/a-part-of-a-history-is-imported-once", "I3/every-mutation-target-refuses-a-stale-token"
	return []faultyStore{
		{"import-at-the-time-of-the-commit", "Imported events get the time of the import.", moves, importNow},
		{"import-of-new-versions", "Imported records begin at version 1.", moves, importVersions},
		{"import-without-entries", "An import drops the index entries of records.", moves, importUnplaced},
		{"import-without-floor", "An import drops the version above which new records begin.", moves, importFloorless},
		{"import-without-creation-time", "An imported run is listed at the time of its import.", moves, importCreated},
		{"scan-of-listed-runs-only", "ScanRuns leaves out the unlisted runs.", moves, scanListed},
		{"entries-left-out", "ReadPlaced returns no index entries.", moves, placedBare},
		{"import-at-any-seq", "An import appends events whatever their seq.", twice, importAnySeq},
		{"import-unfenced", "An import is applied under any fence.", unfenced, importUnfenced},
	}
}

// importing replaces Import by the reference store's, with a part that change has changed.
func importing(s *store, change func(h *handle, part *runstore.Import)) {
	s.imports = func(ctx context.Context, h *handle, part runstore.Import) (runstore.Committed, error) {
		part.Events, part.Records = slices.Clone(part.Events), slices.Clone(part.Records)
		change(h, &part)
		return h.Handle.Import(ctx, part)
	}
}

func importNow(s *store) {
	importing(s, func(_ *handle, part *runstore.Import) {
		for i := range part.Events {
			part.Events[i].Time = time.Now()
		}
	})
}

func importVersions(s *store) {
	importing(s, func(_ *handle, part *runstore.Import) {
		for i := range part.Records {
			part.Records[i].Version = 1
		}
	})
}

func importUnplaced(s *store) {
	importing(s, func(_ *handle, part *runstore.Import) {
		for i := range part.Records {
			part.Records[i].Index = nil
		}
	})
}

func importFloorless(s *store) {
	importing(s, func(_ *handle, part *runstore.Import) { part.Floor = 0 })
}

func importCreated(s *store) {
	importing(s, func(_ *handle, part *runstore.Import) { part.CreatedAt = time.Time{} })
}

func importAnySeq(s *store) {
	importing(s, func(h *handle, part *runstore.Import) {
		run, err := h.GetRun(context.Background(), part.Fence.Run())
		for i := range part.Events {
			if err == nil {
				part.Events[i].Seq = run.LastSeq + 1 + runstore.Seq(i)
			}
		}
	})
}

func importUnfenced(s *store) {
	importing(s, func(h *handle, part *runstore.Import) {
		if lease := h.current(part.Fence.Run()); lease.Token != 0 {
			part.Fence = lease.Fence()
		}
	})
}

func scanListed(s *store) {
	s.ids = func(ctx context.Context, h *handle, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
		page, err := h.Handle.ScanRuns(ctx, after, limit)
		for _, id := range page {
			if run, err := h.GetRun(ctx, id); err == nil && !run.Unlisted {
				ids = append(ids, id)
			}
		}
		return ids, err
	}
}

func placedBare(s *store) {
	s.placed = func(ctx context.Context, h *handle, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error) {
		page, err := h.Handle.ReadPlaced(ctx, id, after, limit)
		for i := range page.Records {
			page.Records[i].Index = nil
		}
		return page, err
	}
}
