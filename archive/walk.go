package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// sink receives runs: a writer of an archive, an importer or a comparison. The calls for one run are
// head, record for each record in the order of the keys, event for each event, and end or discard.
type sink interface {
	head(ctx context.Context, h head) error
	record(ctx context.Context, r runstore.PlacedRecord) error
	event(ctx context.Context, e runstore.Event) error
	end(ctx context.Context) error
	// discard voids what was received of the present run.
	discard(ctx context.Context) error
}

// attempts is how often a run is read until it was not changed meanwhile. 10: each attempt takes a few
// reads, so only a run that is written hundreds of times a second changes in all of them.
const attempts = 10

// maxHeld is how many bytes of records are held in memory, so that a run with fewer is read once more
// for its versions only. 4 MiB: a page of a read.
const maxHeld = runstore.MaxPageBytes

// errChanged reports that a run was changed while it was read.
var errChanged = errors.New("the run was changed while it was read")

// source reads runs of a store.
type source struct {
	store runstore.RunStore
	mover runstore.Mover
}

// newSource returns the source of a store that can be moved.
func newSource(s runstore.RunStore) (source, error) {
	mover, ok := runstore.As[runstore.Mover](s)
	if !ok {
		return source{}, &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "store", Problem: "its adapter does not implement runstore.Mover"}
	}
	return source{s, mover}, nil
}

// runs calls f for each run that follows after, in the order of ScanRuns.
func (s source) runs(ctx context.Context, after runstore.RunID, f func(id runstore.RunID) error) error {
	for {
		page, err := s.mover.ScanRuns(ctx, after, runstore.MaxPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, id := range page {
			if err := f(id); err != nil {
				return err
			}
			after = id
		}
	}
}

// walk passes one run to a sink, in one state: the state in which its head is read. The records are
// read before and after the head. If their keys and versions are the same, and no record was deleted
// that was created in between, they had these versions when the head was read, because versions only
// grow. The journal up to the head's last seq never changes, unless the run is purged.
//
// It reports false, and passes nothing or a discard, if there is no such run.
func (s source) walk(ctx context.Context, id runstore.RunID, to sink) (found bool, err error) {
	to = markedSink{to}
	for range attempts {
		err := s.attempt(ctx, id, to)
		var ofSink errOfSink
		switch {
		case errors.As(err, &ofSink):
			return false, err
		case errors.Is(err, runstore.ErrNotFound):
			return false, nil
		case err == nil:
			return true, nil
		case !errors.Is(err, errChanged):
			return false, fmt.Errorf("run %q: %w", string(id), err)
		}
	}
	return false, fmt.Errorf("run %q: %w, %d times: stop its driver, and repeat", string(id), errChanged, attempts)
}

func (s source) attempt(ctx context.Context, id runstore.RunID, to sink) error {
	first := recordPass{}
	if err := s.readRecords(ctx, id, &first, first.hold); err != nil {
		return err
	}
	run, err := s.store.GetRun(ctx, id)
	if err != nil {
		return err
	}
	if run.Status == StatusImporting {
		return errors.New("its import into this store has not finished: repeat that import first")
	}
	h := head{run, first.floor}
	second := recordPass{}
	if !first.large {
		if err := s.readRecords(ctx, id, &second, nil); err != nil {
			return err
		}
		if !second.same(&first) {
			return errChanged
		}
		if err := to.head(ctx, h); err != nil {
			return err
		}
		for _, r := range first.held {
			if err := to.record(ctx, r); err != nil {
				return err
			}
		}
		return s.finish(ctx, h, to)
	}
	if err := to.head(ctx, h); err != nil {
		return err
	}
	err = s.readRecords(ctx, id, &second, func(r runstore.PlacedRecord) error { return to.record(ctx, r) })
	if err == nil && !second.same(&first) {
		err = errChanged
	}
	if gone(err) {
		return errors.Join(err, to.discard(ctx))
	}
	if err != nil {
		return err
	}
	return s.finish(ctx, h, to)
}

// finish passes the journal of the run, and its end.
func (s source) finish(ctx context.Context, h head, to sink) error {
	err := s.journal(ctx, h, to)
	if gone(err) {
		return errors.Join(err, to.discard(ctx))
	}
	if err != nil {
		return err
	}
	return to.end(ctx)
}

// gone reports whether a read shows that the run was changed or purged. An error of a sink shows
// nothing of the run that is read.
func gone(err error) bool {
	var ofSink errOfSink
	return !errors.As(err, &ofSink) && (errors.Is(err, errChanged) || errors.Is(err, runstore.ErrNotFound))
}

// errOfSink is an error of a sink.
type errOfSink struct{ error }

func (e errOfSink) Unwrap() error { return e.error }

// markedSink marks the errors of a sink.
type markedSink struct{ to sink }

func (m markedSink) head(ctx context.Context, h head) error { return mark(m.to.head(ctx, h)) }
func (m markedSink) record(ctx context.Context, r runstore.PlacedRecord) error {
	return mark(m.to.record(ctx, r))
}
func (m markedSink) event(ctx context.Context, e runstore.Event) error {
	return mark(m.to.event(ctx, e))
}
func (m markedSink) end(ctx context.Context) error     { return mark(m.to.end(ctx)) }
func (m markedSink) discard(ctx context.Context) error { return mark(m.to.discard(ctx)) }

func mark(err error) error {
	if err == nil {
		return nil
	}
	return errOfSink{err}
}

func (s source) journal(ctx context.Context, h head, to sink) error {
	for next := runstore.Seq(1); next <= h.LastSeq; {
		page, err := s.store.ReadJournal(ctx, h.ID, next, int(min(runstore.MaxPage, h.LastSeq-next+1)))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return s.incomplete(ctx, h, next)
		}
		for _, e := range page {
			if e.Seq != next {
				return s.incomplete(ctx, h, next)
			}
			if err := to.event(ctx, e); err != nil {
				return err
			}
			next++
		}
	}
	return s.sameRun(ctx, h)
}

// incomplete returns the error of a journal that lacks an event: errChanged if the run was purged
// meanwhile.
func (s source) incomplete(ctx context.Context, h head, lacks runstore.Seq) error {
	if err := s.sameRun(ctx, h); err != nil {
		return err
	}
	return &runstore.CorruptError{Run: h.ID, Cause: fmt.Errorf("the journal lacks seq %d of %d", lacks, h.LastSeq)}
}

// sameRun returns nil if the run was not purged since its head was read.
func (s source) sameRun(ctx context.Context, h head) error {
	now, err := s.store.GetRun(ctx, h.ID)
	if err != nil {
		return err
	}
	if !now.CreatedAt.Equal(h.CreatedAt) || now.LastSeq < h.LastSeq {
		return errChanged
	}
	return nil
}

// recordPass is one reading of the records of a run.
type recordPass struct {
	floor    runstore.Version // at its start
	floorEnd runstore.Version
	versions hash.Hash // of the keys and versions
	sum      []byte

	held  []runstore.PlacedRecord // unless large
	bytes int
	large bool
}

// hold keeps a record in memory as long as all of them are small enough.
func (p *recordPass) hold(r runstore.PlacedRecord) error {
	if p.bytes += len(r.Key) + len(r.Value) + 256; p.bytes > maxHeld {
		p.held, p.large = nil, true
	}
	if !p.large {
		p.held = append(p.held, r)
	}
	return nil
}

// same reports whether the records stayed the same from the end of the pass before to the start of this
// pass.
func (p *recordPass) same(before *recordPass) bool {
	return slices.Equal(p.sum, before.sum) && p.floorEnd == before.floor
}

// readRecords reads the records of a run, and passes them to f unless that is nil.
func (s source) readRecords(ctx context.Context, id runstore.RunID, p *recordPass, f func(runstore.PlacedRecord) error) error {
	p.versions = sha256.New()
	for first, after := true, runstore.RecordKey(""); ; first = false {
		page, err := s.mover.ReadPlaced(ctx, id, after, runstore.MaxPage)
		if err != nil {
			return err
		}
		if p.floorEnd = page.Floor; first {
			p.floor = page.Floor
		}
		if len(page.Records) == 0 {
			p.sum = p.versions.Sum(nil)
			return nil
		}
		for _, r := range page.Records {
			if r.Key <= after {
				return &runstore.CorruptError{Run: id, Cause: fmt.Errorf("the key %q follows the key %q", string(r.Key), string(after))}
			}
			after = r.Key
			p.versions.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(len(r.Key))), uint64(r.Version)))
			p.versions.Write([]byte(r.Key))
			if f != nil {
				if err := f(r); err != nil {
					return err
				}
			}
		}
	}
}

// sortedPlaces returns the entries of a record ordered by their indexes.
func sortedPlaces(all []runstore.Place) []runstore.Place {
	return slices.SortedFunc(slices.Values(all), func(a, b runstore.Place) int { return cmp.Compare(a.Index, b.Index) })
}
