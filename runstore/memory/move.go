package memory

import (
	"context"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// ScanRuns implements adapter.MoverCore, in the order of the ids.
func (c core) ScanRuns(_ context.Context, after runstore.RunID, limit int) (ids []runstore.RunID, err error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	for id, r := range c.store.runs {
		if !r.purged && id > after {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(limit, len(ids))], nil
}

// ReadPlaced implements adapter.MoverCore.
func (c core) ReadPlaced(_ context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (page runstore.PlacedPage, err error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	r, err := c.store.find(id)
	if err != nil {
		return page, err
	}
	page.Floor = r.floor
	var keys []runstore.RecordKey
	for key := range r.records {
		if key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	p := adapter.NewPage(limit)
	for _, key := range keys {
		rec := r.records[key]
		placed := runstore.PlacedRecord{Record: rec.clone()}
		for _, e := range rec.entries {
			placed.Index = append(placed.Index, runstore.Place{Index: e.index, At: runstore.At(e.at)})
		}
		page.Records = append(page.Records, placed)
		if p.Add(len(rec.Value)) {
			break
		}
	}
	return page, nil
}
