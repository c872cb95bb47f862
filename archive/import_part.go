package archive

import (
	"cmp"
	"context"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// The bounds of one part of an import: 512 events or 64 records, up to 2 MiB. The largest batch of an
// engine is larger; on Spanner a record with eight entries takes 110 of 80,000 mutations. The last part
// is bounded by the contract alone, so that as many records as possible become visible at once.
const (
	partEvents  = 512
	partRecords = 64
	partBytes   = 2 << 20
)

// maxHeldBack bounds the memory of the records that wait for the last part, 64 MiB: eight times what the
// last part can have.
const maxHeldBack = 64 << 20

// perHeldBack is the size that is counted for a record held back, in addition to its key and value:
// 1 KiB, the size of eight index entries.
const perHeldBack = 1 << 10

func (w *runImport) addRecord(ctx context.Context, r runstore.PlacedRecord) error {
	w.done.Records++
	switch {
	case w.present != nil:
		return w.present.record(ctx, r)
	case r.Key == runstore.SummaryKey:
		w.summary = &r
		return nil
	case len(r.Index) > 0:
		return w.holdBack(ctx, r)
	}
	if err := w.makeRoom(ctx, sizeOf(r), len(w.records) == partRecords); err != nil {
		return err
	}
	if w.present != nil { // makeRoom has found it
		return w.present.record(ctx, r)
	}
	w.records = append(w.records, r)
	return nil
}

// sizeOf returns what a record takes of the size of a batch.
func sizeOf(r runstore.PlacedRecord) int { return len(r.Key) + len(r.Value) }

// holdBack keeps a record with index entries for the last part. Of more than maxHeldBack it writes the
// first ones.
func (w *runImport) holdBack(ctx context.Context, r runstore.PlacedRecord) error {
	w.last = append(w.last, r)
	w.lastSize += sizeOf(r) + perHeldBack
	if w.lastSize > partBytes { // it is no small run, which waits for a worker
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	for w.lastSize > maxHeldBack {
		if err := w.writeAhead(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writeAhead writes a part of the records that were held back.
func (w *runImport) writeAhead(ctx context.Context) error {
	n, size := 0, 0
	for n < min(len(w.last), partRecords) && (n == 0 || size+sizeOf(w.last[n]) <= partBytes) {
		size += sizeOf(w.last[n])
		n++
	}
	part := runstore.Import{Records: slices.Clone(w.last[:n])}
	w.last, w.lastSize = slices.Delete(w.last, 0, n), w.lastSize-size-n*perHeldBack
	return w.writePart(ctx, part)
}

func (w *runImport) addEvent(ctx context.Context, e runstore.Event) error {
	w.done.Events++
	if w.present != nil {
		return w.present.event(ctx, e)
	}
	if err := w.makeRoom(ctx, len(e.Kind)+len(e.Data), len(w.events) == partEvents); err != nil {
		return err
	}
	if w.present != nil {
		return w.present.event(ctx, e)
	}
	w.events = append(w.events, e)
	return nil
}

// makeRoom flushes the part if it is full, or too large for one more item of a size.
func (w *runImport) makeRoom(ctx context.Context, size int, full bool) error {
	if full || w.size > 0 && w.size+size > partBytes {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	w.size += size
	return nil
}

// flush imports the part that was collected, or compares it.
func (w *runImport) flush(ctx context.Context) error {
	if err := w.begin(ctx); err != nil || w.present != nil {
		return err
	}
	return w.writePart(ctx, w.take())
}

// writePart imports a part that is not the last, and renews the lease from time to time.
func (w *runImport) writePart(ctx context.Context, part runstore.Import) error {
	if w.parts++; w.parts%partsPerRenewal == 0 {
		if err := w.try(ctx, func() error {
			_, err := w.store.RenewLease(ctx, runstore.RenewRequest{Fence: w.fence, TTL: importTTL})
			return err
		}); err != nil {
			return err
		}
	}
	return w.write(ctx, part)
}

// begin creates the run. If the target has the run already, it compares what was collected.
func (w *runImport) begin(ctx context.Context) error {
	if w.begun() {
		return nil
	}
	exists, err := w.create(ctx)
	if err != nil || !exists {
		return err
	}
	c := newComparison(source{w.store, w.mover}, func(d Difference) { w.differences = append(w.differences, d) })
	w.present = c
	if err := c.head(ctx, w.h); err != nil {
		return err
	}
	for _, r := range w.collected() {
		if err := c.record(ctx, r); err != nil {
			return err
		}
	}
	for _, e := range w.events {
		if err := c.event(ctx, e); err != nil {
			return err
		}
	}
	w.records, w.last, w.lastSize, w.summary, w.events = nil, nil, 0, nil, nil
	return nil
}

// collected returns the records that were collected, in the order of their keys.
func (w *runImport) collected() []runstore.PlacedRecord {
	all := slices.Concat(w.records, w.last, w.summaries())
	slices.SortFunc(all, func(a, b runstore.PlacedRecord) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

// summaries returns the summary, if there is one.
func (w *runImport) summaries() []runstore.PlacedRecord {
	if w.summary == nil {
		return nil
	}
	return []runstore.PlacedRecord{*w.summary}
}

// take returns the part that was collected, without what belongs to the last part: the summary makes the
// run what it is to the layer above, and index entries show it to workers.
func (w *runImport) take() runstore.Import {
	part := runstore.Import{Events: w.events, Records: w.records}
	w.records, w.events, w.size = nil, nil, 0
	return part
}

// takeLast returns the last part: the summary, the records with index entries, and the part that was
// collected. What does not fit is written first: the part that was collected, then the first records
// with index entries.
func (w *runImport) takeLast(ctx context.Context) (last runstore.Import, err error) {
	fits := func(records, bytes int) bool {
		for _, r := range slices.Concat(w.last, w.summaries()) {
			bytes += sizeOf(r)
			records++
		}
		return records <= runstore.MaxRecordWrites && bytes <= runstore.MaxBatchBytes
	}
	if w.size > 0 && !fits(len(w.records), w.size) {
		if err := w.writePart(ctx, w.take()); err != nil {
			return last, err
		}
	}
	for !fits(len(w.records), w.size) {
		if err := w.writeAhead(ctx); err != nil {
			return last, err
		}
	}
	last = w.take()
	last.Records = slices.Concat(last.Records, w.last, w.summaries())
	return last, nil
}

// finish imports the rest and, in the same step, makes the run what it was in the source.
func (w *runImport) finish(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	if w.present != nil {
		if err := w.present.end(ctx); err != nil {
			return err
		}
		w.finished(w)
		return nil
	}
	last, err := w.takeLast(ctx)
	if err != nil {
		return err
	}
	status := w.h.Status
	last.CreatedAt, last.Floor, last.Status, last.Release = w.h.CreatedAt, w.h.Floor, &status, true
	if !w.h.RunnableAt.IsZero() {
		last.Runnable = runstore.At(w.h.RunnableAt)
	}
	if err := w.write(ctx, last); err != nil {
		return err
	}
	w.done.Runs = 1
	w.finished(w)
	return nil
}
