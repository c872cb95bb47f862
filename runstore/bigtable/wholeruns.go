package bigtable

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// ScanRuns implements adapter.MoverCore, in the order of the rows: by a hash of the id. One request
// reads the heads of as many rows as the page may have; those of purged runs are left out.
func (s *engine) ScanRuns(ctx context.Context, last runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	from, end := kindRun, after(kindRun)
	if last != "" {
		from = runKey(last) + "\x00"
	}
	filter := latest(wholeFamily(familyHead))
	for {
		rows, err := s.readRows(ctx, bigtable.NewRange(from, end), bigtable.RowFilter(filter), bigtable.LimitRows(int64(limit)))
		if err != nil {
			return nil, err
		}
		for _, found := range rows {
			r, err := parseRow(found)
			if err != nil {
				return nil, err
			}
			if r.exists() {
				ids = append(ids, runOf(found.Key()))
			}
		}
		if len(ids) > 0 || len(rows) < limit {
			return ids, nil
		}
		from = rows[len(rows)-1].Key() + "\x00"
	}
}

// ReadPlaced implements adapter.MoverCore.
func (s *engine) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error) {
	return retryMissing(func() (page runstore.PlacedPage, err error) {
		r, all, err := s.readPage(ctx, id, runstore.RecordQuery{After: after, Limit: limit})
		if err != nil {
			return page, err
		}
		page.Floor = runstore.Version(r.head.Floor)
		records, err := s.pageOf(ctx, id, all, limit)
		for i, record := range records {
			placed := runstore.PlacedRecord{Record: record}
			for _, entry := range all[i].meta.Entries {
				at := runstore.At(runstore.FromMicros(entry.At))
				placed.Index = append(placed.Index, runstore.Place{Index: runstore.IndexName(entry.Index), At: at})
			}
			page.Records = append(page.Records, placed)
		}
		return page, err
	})
}

// setCreated changes the creation time of the run to that of an import, unless that is zero, and with
// it the run's entry in IndexRuns. placeRunnable moves the entry in IndexRunnable.
func (e *edit) setCreated(at time.Time) {
	h := &e.head
	if at.IsZero() || runstore.Micros(at) == h.Created {
		return
	}
	if !h.Unlisted {
		e.obsolete = append(e.obsolete, h.runsEntry(e.run.id).rowKey())
	}
	h.Created, h.ListedRev, h.ListedBy = runstore.Micros(at), h.Rev, e.nonce
	if !h.Unlisted {
		e.rows = append(e.rows, put(h.runsEntry(e.run.id).rowKey(), "", nil))
	}
}
