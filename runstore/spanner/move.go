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
	keys := spanner.AllKeys()
	for {
		if after != "" {
			k := keyOf(after)
			keys = spanner.KeyRange{Start: spanner.Key{k.hash, k.run}, End: spanner.Key{int64(math.MaxInt64)}, Kind: spanner.OpenClosed}
		}
		rows, err := selectAll[struct {
			Run     []byte
			Created spanner.NullTime
		}](ctx, s, byKey("Runs", keys, []string{"Run", "Created"}, s.read("scan-runs", limit)))
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if after = runstore.RunID(row.Run); row.Created.Valid {
				ids = append(ids, after)
			}
		}
		if len(ids) > 0 || len(rows) < limit {
			return ids, nil
		}
	}
}

// ReadPlaced implements adapter.MoverCore.
func (s *engine) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	found, p := false, adapter.Page{}
	read := s.sql("records-placed", statement(sqlRecordsPlaced, id, map[string]any{"after": stored(after), "limit": int64(limit)}))
	begin := func() { page, found, p = runstore.PlacedPage{}, false, adapter.NewPage(limit) }
	err = s.rows(ctx, spanner.StrongRead(), read, begin, func(row *spanner.Row) (bool, error) {
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
