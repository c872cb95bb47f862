package spanner

import (
	"context"
	"errors"
	"math"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// ScanRuns implements adapter.MoverCore, in the order of the hashes of the ids. It reads a range of the
// primary key, and leaves out the rows of purged runs.
func (s *engine) ScanRuns(ctx context.Context, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	rows := spanner.AllKeys()
	for {
		if after != "" {
			k := keyOf(after)
			rows = spanner.KeyRange{Start: spanner.Key{k.hash, k.run}, End: spanner.Key{int64(math.MaxInt64)}, Kind: spanner.OpenClosed}
		}
		read := 0
		err = s.rows(ctx, spanner.StrongRead(), func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator {
			return tx.ReadWithOptions(ctx, "Runs", rows, []string{"Run", "Created"}, s.read("scan-runs", limit))
		}, func() { ids, read = nil, 0 }, func(row *spanner.Row) (bool, error) {
			var id []byte
			var created spanner.NullTime
			if err := row.Columns(&id, &created); err != nil {
				return false, err
			}
			read++
			if after = runstore.RunID(id); created.Valid {
				ids = append(ids, after)
			}
			return true, nil
		})
		if err != nil || len(ids) > 0 || read < limit {
			return ids, err
		}
	}
}

// ReadPlaced implements adapter.MoverCore.
func (s *engine) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	found, p := false, adapter.Page{}
	stmt := s.statement(sqlRecordsPlaced, id, map[string]any{"after": stored(after), "limit": int64(limit)})
	begin := func() { page, found, p = runstore.PlacedPage{}, false, adapter.NewPage(limit) }
	err = s.each(ctx, "records-placed", stmt, begin, func(row *spanner.Row) (bool, error) {
		var floor int64
		var r record
		if err := errors.Join(row.ColumnByName("VersionFloor", &floor), row.ToStructLenient(&r)); err != nil {
			return false, err
		}
		found, page.Floor = true, runstore.Version(floor)
		if !r.Version.Valid {
			return false, nil
		}
		placed := runstore.PlacedRecord{Record: r.public()}
		for i, name := range r.PlaceNames {
			placed.Index = append(placed.Index, runstore.Place{Index: runstore.IndexName(name), At: runstore.At(r.PlaceTimes[i])})
		}
		page.Records = append(page.Records, placed)
		return !p.Add(len(r.Value)), nil
	})
	if err == nil && !found {
		err = runstore.ErrNotFound
	}
	return page, err
}
