package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"encoding/json"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// ScanRuns implements adapter.MoverCore, in the order of the ids.
func (e *engine) ScanRuns(ctx context.Context, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	err = e.read(ctx, func(c *conn) error {
		return c.query(ctx, sqlRunsScan, func(v []driver.Value) error {
			ids = append(ids, runstore.RunID(bytesOf(v[0])))
			return nil
		}, blob(after), int64(limit))
	})
	return ids, err
}

// ReadPlaced implements adapter.MoverCore.
func (e *engine) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	err = e.read(ctx, func(c *conn) error {
		found, p := false, adapter.NewPage(limit)
		err := c.query(ctx, sqlRecordsPlaced, func(v []driver.Value) error {
			found = true
			page.Floor = runstore.Version(v[recordWidth].(int64))
			if v[1] == nil {
				return nil
			}
			placed := runstore.PlacedRecord{Record: scanRecord(v)}
			var err error
			if placed.Index, err = decodePlaces(v[recordWidth+1]); err != nil {
				return err
			}
			page.Records = append(page.Records, placed)
			return enough(p.Add(len(placed.Value)))
		}, blob(id), blob(after), int64(limit))
		if err == nil && !found {
			return runstore.ErrNotFound
		}
		return err
	})
	return page, err
}

// decodePlaces decodes the index entries of a record, as sql/records_placed.sql returns them.
func decodePlaces(v driver.Value) (places []runstore.Place, err error) {
	if v == nil {
		return nil, nil
	}
	var stored []struct {
		Name string
		At   int64
	}
	if err := json.Unmarshal([]byte(text[string](v)), &stored); err != nil {
		return nil, damaged("the index entries of a record cannot be read: %v", err)
	}
	for _, p := range stored {
		name, err := hex.DecodeString(p.Name)
		if err != nil {
			return nil, damaged("the name of an index cannot be read: %v", err)
		}
		places = append(places, runstore.Place{Index: runstore.IndexName(name), At: runstore.At(runstore.FromMicros(p.At))})
	}
	return places, nil
}

// restore puts one record as another store had it.
func (tx *tx) restore(no int64, w runstore.RecordWrite, was runstore.Record) error {
	written := was.Updated.Time.UnixMicro()
	v, err := tx.c.one(tx.ctx, sqlRecordRestore, no, blob(w.Key), data(w.Value), int64(was.Version),
		int64(was.Created.Seq), was.Created.Time.UnixMicro(), int64(was.Created.Token),
		int64(was.Updated.Seq), written, int64(was.Updated.Token))
	if err != nil {
		return err
	}
	return tx.place(no, w, v[0].(int64), written)
}
