// Package intercept wraps each call to a store with a function, for tests that kill, stop or
// disturb the process that makes the calls.
package intercept

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Around is called for each call to a store. It makes the call by calling do, at most once and with
// a context of its choice, or skips it. Its error becomes the call's error; the result is that of
// do, or empty. op is one word: create, get, acquire, renew, release, commit, multi, journal,
// records, scan, feed or now.
type Around func(ctx context.Context, op string, do func(context.Context) error) error

// Store returns s with each call except Close wrapped by around. Of the optional capabilities of a
// store it has runstore.MultiCommitter, if s does.
func Store(s runstore.RunStore, around Around) runstore.RunStore {
	one := store{s, around}
	if multi, ok := runstore.As[runstore.MultiCommitter](s); ok {
		return multiStore{one, multi}
	}
	return one
}

type store struct {
	runstore.RunStore
	around Around
}

type multiStore struct {
	store
	multi runstore.MultiCommitter
}

func call[R any](ctx context.Context, around Around, op string, do func(context.Context) (R, error)) (result R, err error) {
	err = around(ctx, op, func(ctx context.Context) (err error) {
		result, err = do(ctx)
		return err
	})
	return result, err
}

func (s store) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return call(ctx, s.around, "create", func(ctx context.Context) (runstore.Created, error) { return s.RunStore.CreateRun(ctx, spec) })
}

func (s store) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return call(ctx, s.around, "get", func(ctx context.Context) (runstore.Run, error) { return s.RunStore.GetRun(ctx, id) })
}

func (s store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return call(ctx, s.around, "acquire", func(ctx context.Context) (runstore.Granted, error) { return s.RunStore.AcquireLease(ctx, req) })
}

func (s store) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return call(ctx, s.around, "renew", func(ctx context.Context) (runstore.Renewed, error) { return s.RunStore.RenewLease(ctx, req) })
}

func (s store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return call(ctx, s.around, "release", func(ctx context.Context) (runstore.Committed, error) { return s.RunStore.ReleaseLease(ctx, req) })
}

func (s store) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return call(ctx, s.around, "commit", func(ctx context.Context) (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

func (s multiStore) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return call(ctx, s.around, "multi", func(ctx context.Context) ([]runstore.Committed, error) { return s.multi.CommitMulti(ctx, batches) })
}

func (s store) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return call(ctx, s.around, "journal", func(ctx context.Context) ([]runstore.Event, error) {
		return s.RunStore.ReadJournal(ctx, id, from, limit)
	})
}

func (s store) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return call(ctx, s.around, "records", func(ctx context.Context) ([]runstore.Record, error) { return s.RunStore.ReadRecords(ctx, id, q) })
}

func (s store) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return call(ctx, s.around, "scan", func(ctx context.Context) ([]runstore.IndexEntry, error) { return s.RunStore.ScanIndex(ctx, q) })
}

func (s store) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return call(ctx, s.around, "feed", func(ctx context.Context) ([]runstore.FeedEvent, error) { return s.RunStore.ReadFeed(ctx, q) })
}

func (s store) Now(ctx context.Context) (time.Time, error) {
	return call(ctx, s.around, "now", func(ctx context.Context) (time.Time, error) { return s.RunStore.Now(ctx) })
}
