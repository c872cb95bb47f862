package spanner

import (
	"context"
	"errors"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// ScanRuns implements adapter.MoverCore, in the order of the hashes of the ids.
func (s *engine) ScanRuns(ctx context.Context, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	k := keyOf(after)
	params := map[string]any{"hash": k.hash, "run": k.run, "limit": int64(limit)}
	if after == "" {
		params["run"] = []byte(nil)
	}
	err = s.each(ctx, "scan-runs", spanner.Statement{SQL: sqlRunsScan, Params: params}, func() { ids = nil }, func(row *spanner.Row) (bool, error) {
		var id []byte
		err := row.Columns(&id)
		ids = append(ids, runstore.RunID(id))
		return true, err
	})
	return ids, err
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
