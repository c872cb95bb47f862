package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tapestore/tapestore/runstore"
)

// measured is a store whose operations are observed.
type measured struct {
	store    runstore.RunStore
	in       *instruments
	tracer   trace.Tracer
	global   bool // tracer is that of OpenTelemetry's global provider
	log      *eventLog
	expiries expiries
}

// spanNames are the names of the spans.
var spanNames = func() (names [operations]string) {
	for op, name := range operationNames {
		names[op] = "tapestore." + name
	}
	return names
}()

// Unwrap returns the store that is measured, for runstore.As.
func (s *measured) Unwrap() runstore.RunStore { return s.store }

// seen remembers the expiry of the lease of a holder that a reply names; the zero Holder is none.
func (s *measured) seen(ctx context.Context, id runstore.RunID, h runstore.Holder) {
	if h.Token != 0 && s.observes(ctx) {
		s.expiries.swap(id, expiry{h.Token, h.Owner, h.ExpiresAt})
	}
}

// Close implements runstore.RunStore.
func (s *measured) Close() error { return s.store.Close() }

// CreateRun implements runstore.RunStore.
func (s *measured) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	ctx, o, ok := s.begin(ctx, opCreateRun)
	created, err := s.store.CreateRun(ctx, spec)
	if ok {
		class := classOf(o.ctx, err)
		if err == nil && !created.New {
			class = outcomeExists
		}
		replayed := err != nil || !created.New || created.Committed.Replayed
		o.wrote(runstore.Fence{}, &spec.Writes, replayed, class, err)
		o.granted(created.Lease, created.Former, created.Committed.Time, replayed)
		o.end(spec.ID, class, err)
	}
	return created, err
}

// GetRun implements runstore.RunStore.
func (s *measured) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := do(ctx, s, opGetRun, id, func(ctx context.Context) (runstore.Run, error) { return s.store.GetRun(ctx, id) })
	s.seen(ctx, run.ID, run.Holder)
	return run, err
}

// AcquireLease implements runstore.RunStore.
func (s *measured) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	ctx, o, ok := s.begin(ctx, opAcquireLease)
	granted, err := s.store.AcquireLease(ctx, req)
	if ok {
		if held := (*runstore.LeaseHeldError)(nil); errors.As(err, &held) {
			s.seen(ctx, req.Run, held.Holder)
		}
		class := classOf(o.ctx, err)
		replayed := err != nil || granted.Ended || granted.Committed.Replayed
		o.wrote(runstore.GuardsOf(req.Guards...).Fence, &req.Writes, replayed, class, err)
		o.granted(granted.Lease, granted.Former, granted.Committed.Time, replayed)
		o.end(req.Run, class, err)
	}
	return granted, err
}

// RenewLease implements runstore.RunStore.
func (s *measured) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	ctx, o, ok := s.begin(ctx, opRenewLease)
	renewed, err := s.store.RenewLease(ctx, req)
	if ok {
		class := classOf(o.ctx, err)
		o.wrote(req.Fence, &req.Writes, renewed.Committed.Replayed, class, err)
		if l := renewed.Lease; err == nil {
			s.expiries.swap(l.Run, expiry{l.Token, l.Owner, l.ExpiresAt})
		}
		o.end(req.Fence.Run(), class, err)
	}
	return renewed, err
}

// ReleaseLease implements runstore.RunStore.
func (s *measured) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return s.write(ctx, opReleaseLease, req.Fence.Run(), req.Fence, &req.Writes, func(ctx context.Context) (runstore.Committed, error) {
		return s.store.ReleaseLease(ctx, req)
	})
}

// Commit implements runstore.RunStore.
func (s *measured) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	return s.write(ctx, opCommit, batch.Run(), batch.Guards().Fence, &batch.Writes, func(ctx context.Context) (runstore.Committed, error) {
		return s.store.Commit(ctx, batch)
	})
}

// write runs a write of one run.
func (s *measured) write(ctx context.Context, op operation, id runstore.RunID, f runstore.Fence, w *runstore.Writes, do func(context.Context) (runstore.Committed, error)) (runstore.Committed, error) {
	ctx, o, ok := s.begin(ctx, op)
	done, err := do(ctx)
	if ok {
		class := classOf(o.ctx, err)
		o.wrote(f, w, done.Replayed, class, err)
		o.end(id, class, err)
	}
	return done, err
}

// ReadJournal implements runstore.RunStore.
func (s *measured) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return do(ctx, s, opReadJournal, id, func(ctx context.Context) ([]runstore.Event, error) {
		return s.store.ReadJournal(ctx, id, from, limit)
	})
}

// ReadRecords implements runstore.RunStore.
func (s *measured) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return do(ctx, s, opReadRecords, id, func(ctx context.Context) ([]runstore.Record, error) {
		return s.store.ReadRecords(ctx, id, q)
	})
}

// ScanIndex implements runstore.RunStore.
func (s *measured) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	entries, err := do(ctx, s, opScanIndex, "", func(ctx context.Context) ([]runstore.IndexEntry, error) {
		return s.store.ScanIndex(ctx, q)
	})
	if q.Index == runstore.IndexRunnable { // a recovery worker acquires these next
		for i := range entries {
			s.seen(ctx, entries[i].Run, entries[i].Head.Holder)
		}
	}
	return entries, err
}

// ReadFeed implements runstore.RunStore.
func (s *measured) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return do(ctx, s, opReadFeed, "", func(ctx context.Context) ([]runstore.FeedEvent, error) { return s.store.ReadFeed(ctx, q) })
}

// Now implements runstore.RunStore.
func (s *measured) Now(ctx context.Context) (time.Time, error) {
	return do(ctx, s, opNow, "", s.store.Now)
}

// multiCommitter measures the runstore.MultiCommitter of a store.
type multiCommitter struct {
	s     *measured
	multi runstore.MultiCommitter
}

// CommitMulti implements runstore.MultiCommitter.
func (m multiCommitter) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	ctx, o, ok := m.s.begin(ctx, opCommitMulti)
	done, err := m.multi.CommitMulti(ctx, batches)
	if ok {
		class := classOf(o.ctx, err)
		fence, all := ofMulti(batches, done, err)
		o.wrote(fence, &all, false, class, err)
		o.end("", class, err)
	}
	return done, err
}

// ofMulti returns the writes of those batches that were applied now, and the fence of the batch that
// was refused: the zero Fence if err names no run.
func ofMulti(batches []runstore.Batch, done []runstore.Committed, err error) (fence runstore.Fence, all runstore.Writes) {
	fenced := (*runstore.FencedError)(nil)
	named := errors.As(err, &fenced)
	for i := range batches {
		b := &batches[i]
		f := b.Guards().Fence
		if fence.IsZero() && (!named || f.Token() == fenced.Presented) {
			fence = f
		}
		if i < len(done) && done[i].Replayed {
			continue
		}
		all.Events = append(all.Events, b.Events...)
		all.Records = append(all.Records, b.Records...)
	}
	return fence, all
}

// staleReader measures the runstore.StaleReader of a store.
type staleReader struct {
	s     *measured
	stale runstore.StaleReader
}

// ReadJournalStale implements runstore.StaleReader.
func (r staleReader) ReadJournalStale(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int, bound time.Duration) ([]runstore.Event, error) {
	return do(ctx, r.s, opReadJournalStale, id, func(ctx context.Context) ([]runstore.Event, error) {
		return r.stale.ReadJournalStale(ctx, id, from, limit, bound)
	})
}

// ScanIndexStale implements runstore.StaleReader.
func (r staleReader) ScanIndexStale(ctx context.Context, q runstore.IndexQuery, bound time.Duration) ([]runstore.Candidate, error) {
	return do(ctx, r.s, opScanIndexStale, "", func(ctx context.Context) ([]runstore.Candidate, error) {
		return r.stale.ScanIndexStale(ctx, q, bound)
	})
}
