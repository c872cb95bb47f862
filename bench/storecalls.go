package bench

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
)

// storeCalls is a store that counts its calls: those of RPCs, and those that a server makes by
// itself.
type storeCalls struct {
	runstore.RunStore
	ofRPCs, own atomic.Int64
	feeds       atomic.Int64 // reads of the feed, included in the counts above
	commits     atomic.Int64 // commits to one run, included in the counts above
}

// countCalls wraps a store. The wrapped store has the capabilities that a server uses:
// MultiCommitter and the report of commits, if the store has them.
func countCalls(s runstore.RunStore) (runstore.RunStore, *storeCalls) {
	c := &storeCalls{RunStore: s}
	multi, commits := runstore.As[runstore.MultiCommitter](s)
	notifier, notifies := runstore.As[runstore.Notifier](s)
	switch {
	case commits && notifies:
		return struct {
			*storeCalls
			countedMulti
			runstore.Notifier
		}{c, countedMulti{multi, c}, notifier}, c
	case commits:
		return struct {
			*storeCalls
			countedMulti
		}{c, countedMulti{multi, c}}, c
	case notifies:
		return struct {
			*storeCalls
			runstore.Notifier
		}{c, notifier}, c
	default:
		return c, c
	}
}

func (c *storeCalls) count(ctx context.Context) {
	if method, ok := grpc.Method(ctx); ok && strings.HasPrefix(method, "/tape.v1.Tape/") {
		c.ofRPCs.Add(1)
	} else {
		c.own.Add(1)
	}
}

// countedMulti also counts commits to several runs.
type countedMulti struct {
	multi runstore.MultiCommitter
	calls *storeCalls
}

// CommitMulti implements runstore.MultiCommitter.
func (m countedMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	m.calls.count(ctx)
	return m.multi.CommitMulti(ctx, batches)
}

// CreateRun implements runstore.RunStore, as do the following methods.
func (c *storeCalls) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	c.count(ctx)
	return c.RunStore.CreateRun(ctx, spec)
}

func (c *storeCalls) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	c.count(ctx)
	return c.RunStore.GetRun(ctx, id)
}

func (c *storeCalls) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	c.count(ctx)
	return c.RunStore.AcquireLease(ctx, req)
}

func (c *storeCalls) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	c.count(ctx)
	return c.RunStore.RenewLease(ctx, req)
}

func (c *storeCalls) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	c.count(ctx)
	return c.RunStore.ReleaseLease(ctx, req)
}

func (c *storeCalls) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	c.count(ctx)
	c.commits.Add(1)
	return c.RunStore.Commit(ctx, batch)
}

func (c *storeCalls) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	c.count(ctx)
	return c.RunStore.ReadJournal(ctx, id, from, limit)
}

func (c *storeCalls) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	c.count(ctx)
	return c.RunStore.ReadRecords(ctx, id, q)
}

func (c *storeCalls) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	c.count(ctx)
	return c.RunStore.ScanIndex(ctx, q)
}

func (c *storeCalls) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	c.count(ctx)
	c.feeds.Add(1)
	return c.RunStore.ReadFeed(ctx, q)
}

func (c *storeCalls) Now(ctx context.Context) (time.Time, error) {
	c.count(ctx)
	return c.RunStore.Now(ctx)
}
