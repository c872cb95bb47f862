package adapter

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// MultiCommitter is the runstore.MultiCommitter of a store whose engine has one. The engine's may
// assume what a [Core] may.
type MultiCommitter struct {
	store *Store
	core  runstore.MultiCommitter
}

// NewMultiCommitter returns the capability for the store to embed.
func NewMultiCommitter(s *Store, core runstore.MultiCommitter) MultiCommitter {
	return MultiCommitter{s, core}
}

// CommitMulti implements runstore.MultiCommitter.
func (m MultiCommitter) CommitMulti(ctx context.Context, batches []runstore.Batch) (done []runstore.Committed, err error) {
	defer m.store.opts.Waiters.AfterBatches(&err, batches...)
	return Do(ctx, m.store, "commit", "", runstore.CheckMulti(batches), func(ctx context.Context) ([]runstore.Committed, error) {
		return m.core.CommitMulti(ctx, batches)
	})
}

// EpochManager is the runstore.EpochManager of a store whose engine has one. The engine's may
// assume what a [Core] may.
type EpochManager struct {
	store *Store
	core  runstore.EpochManager
}

// NewEpochManager returns the capability for the store to embed.
func NewEpochManager(s *Store, core runstore.EpochManager) EpochManager { return EpochManager{s, core} }

// Epochs implements runstore.EpochManager.
func (m EpochManager) Epochs(ctx context.Context) ([]runstore.EpochChange, error) {
	return Do(ctx, m.store, "epochs", "", nil, m.core.Epochs)
}

// RaiseEpoch implements runstore.EpochManager.
func (m EpochManager) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
	defer m.store.opts.Waiters.AfterRaise(&err)
	return Do(ctx, m.store, "raise epoch", "", runstore.CheckReason(reason), func(ctx context.Context) (runstore.Epoch, error) {
		return m.core.RaiseEpoch(ctx, reason)
	})
}

// Notifier is the runstore.Notifier of a store whose engine has one. The engine's may assume what a
// [Core] may.
type Notifier struct {
	store *Store
	core  runstore.Notifier
}

// NewNotifier returns the capability for the store to embed.
func NewNotifier(s *Store, core runstore.Notifier) Notifier { return Notifier{s, core} }

// Wakeups implements runstore.Notifier.
func (n Notifier) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	return Do(ctx, n.store, "wakeups", "", nil, n.core.Wakeups)
}

// RunNotifier is the runstore.RunNotifier of a store: the engine's, which may assume what a [Core]
// may, or one that reports only writes of this process.
type RunNotifier struct {
	store *Store
	core  runstore.RunNotifier
}

// NewRunNotifier returns the capability for the store to embed. With a nil core it reports only
// writes of this process, and whatever else the engine wakes [Options.Waiters] for.
func NewRunNotifier(s *Store, core runstore.RunNotifier) RunNotifier { return RunNotifier{s, core} }

// RunWakeups implements runstore.RunNotifier.
func (n RunNotifier) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error) {
	return Do(ctx, n.store, "run wakeups", id, runstore.CheckRunID(id), func(ctx context.Context) (<-chan struct{}, error) {
		if n.core == nil {
			return n.store.opts.Waiters.Add(ctx, id, on), nil
		}
		return n.core.RunWakeups(ctx, id, on)
	})
}

// TermReader is the runstore.TermReader of a store whose engine has one. The engine's may assume what
// a [Core] may.
type TermReader struct {
	store *Store
	core  runstore.TermReader
}

// NewTermReader returns the capability for the store to embed.
func NewTermReader(s *Store, core runstore.TermReader) TermReader { return TermReader{s, core} }

// ReadTerms implements runstore.TermReader.
func (r TermReader) ReadTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	return Do(ctx, r.store, "read terms", id, runstore.CheckRunID(id), func(ctx context.Context) ([]runstore.Term, error) {
		return r.core.ReadTerms(ctx, id)
	})
}

// Mover is the runstore.Mover of a store whose engine has one. The engine may assume what a
// [Core] may.
type Mover struct {
	store *Store
	core  MoverCore
}

// MoverCore is what an engine implements for [Mover]. Its Commit applies batches with a
// runstore.History: those of runstore.Import.
type MoverCore interface {
	ScanRuns(ctx context.Context, after runstore.RunID, limit int) ([]runstore.RunID, error)
	ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error)
	Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error)
}

// NewMover returns the capability for the store to embed.
func NewMover(s *Store, core MoverCore) Mover { return Mover{s, core} }

// ScanRuns implements runstore.Mover.
func (m Mover) ScanRuns(ctx context.Context, after runstore.RunID, limit int) ([]runstore.RunID, error) {
	return Do(ctx, m.store, "scan runs", "", runstore.CheckScan(after, limit), func(ctx context.Context) ([]runstore.RunID, error) {
		return m.core.ScanRuns(ctx, after, limit)
	})
}

// ReadPlaced implements runstore.Mover.
func (m Mover) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error) {
	invalid := runstore.RecordQuery{After: after, Limit: limit}.Check(id)
	return Do(ctx, m.store, "read records", id, invalid, func(ctx context.Context) (runstore.PlacedPage, error) {
		return m.core.ReadPlaced(ctx, id, after, limit)
	})
}

// Import implements runstore.Mover.
func (m Mover) Import(ctx context.Context, part runstore.Import) (done runstore.Committed, err error) {
	invalid, id := part.Check(), part.Fence.Run()
	var batch runstore.Batch
	if invalid == nil {
		batch = part.Batch()
		defer m.store.opts.Waiters.After(&err, wakeup.KindOf(batch), id)
	}
	return Do(ctx, m.store, "import", id, invalid, func(ctx context.Context) (runstore.Committed, error) {
		return m.core.Commit(ctx, batch)
	})
}
