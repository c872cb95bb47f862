package faultystores

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// faultyStore describes a faulty store before it is opened.
type faultyStore struct {
	name, breaks, caught string
	// broken replaces methods of a fresh store.
	broken func(s *store)
}

func (x faultyStore) harness() conformance.Harness {
	return harness(x.broken)
}

// harness makes stores that broken has modified. If broken is nil, they are the reference store
// behind a wrapper that changes nothing.
func harness(broken func(s *store)) conformance.Harness {
	return conformance.Harness{New: func(conformance.T) conformance.Instance {
		s := &store{Store: memory.New(nil), grants: map[runstore.RunID]runstore.Lease{}}
		s.stall = s.Store.Stall
		s.replica.journals, s.replica.scans = map[string]snapshot[runstore.Event]{}, map[string]snapshot[runstore.Candidate]{}
		if broken != nil {
			broken(s)
		}
		open := func(_ context.Context, wall func() time.Time) (runstore.RunStore, error) {
			return &handle{Handle: s.Store.Open(), store: s, wall: wall}, nil
		}
		return conformance.Instance{
			Open:         func(ctx context.Context) (runstore.RunStore, error) { return open(ctx, nil) },
			OpenSkewed:   open,
			AdvanceClock: s.Advance,
			BlockWriters: func(conformance.T) (func(ctx context.Context, n int) error, func()) { return s.stall() },
		}
	}}
}

// store is the reference store with some methods replaced. A nil field means the reference store's
// own method.
type store struct {
	*memory.Store
	stall func() (held func(ctx context.Context, n int) error, resume func())

	create  func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error)
	get     func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error)
	acquire func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error)
	renew   func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error)
	release func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error)
	commit  func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error)
	multi   func(ctx context.Context, h *handle, batches []runstore.Batch) ([]runstore.Committed, error)
	journal func(ctx context.Context, h *handle, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error)
	records func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error)
	scan    func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error)
	newest  func(ctx context.Context, h *handle, limit int) ([]runstore.FeedEvent, error)
	feed    func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error)
	wakeups func(ctx context.Context, h *handle, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error)
	raise   func(ctx context.Context, h *handle, reason string) (runstore.Epoch, error)
	terms   func(ctx context.Context, h *handle, id runstore.RunID) ([]runstore.Term, error)
	ids     func(ctx context.Context, h *handle, after runstore.RunID, limit int) ([]runstore.RunID, error)
	placed  func(ctx context.Context, h *handle, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error)
	imports func(ctx context.Context, h *handle, part runstore.Import) (runstore.Committed, error)

	replica replica // for stale reads

	reads atomic.Int64 // the number of reads so far

	mu sync.Mutex
	// grants holds the last lease granted on each run, from which a faulty store gets the current
	// fence.
	grants map[runstore.RunID]runstore.Lease
}

// handle is an open handle on a store. wall returns the time of day in the handle's process; nil
// means that the process's clock agrees with the store clock.
type handle struct {
	*memory.Handle
	*store
	wall func() time.Time
}

// clock returns the time according to the handle's own process.
func (h *handle) clock(ctx context.Context) (time.Time, error) {
	if h.wall == nil {
		return h.Now(ctx)
	}
	return h.wall().UTC().Truncate(runstore.TimePrecision), nil
}

// readOwnClock reads the clock of the handle's process and ignores the time, like an adapter that
// reads it to measure the duration of an operation.
func (h *handle) readOwnClock() {
	if h.wall != nil {
		h.wall()
	}
}

// granted records a lease, unless a later one of the run is recorded.
func (s *store) granted(l runstore.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Token > s.grants[l.Run].Token {
		s.grants[l.Run] = l
	}
}

// current returns the last lease granted on a run.
func (s *store) current(id runstore.RunID) runstore.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants[id]
}

// pauseBetweenSteps widens the gap between two steps that should have been one: it waits for 6
// reads, or 1 ms if there are no such readers.
func (s *store) pauseBetweenSteps() {
	enough := s.reads.Load() + 6
	for began := time.Now(); s.reads.Load() < enough && time.Since(began) < time.Millisecond; {
		runtime.Gosched()
	}
}

// refenced returns b under another fence, with its other guards unchanged.
func refenced(b runstore.Batch, f runstore.Fence) runstore.Batch {
	g := b.Guards()
	g.Fence = f
	return reguarded(b, g)
}

// reguarded returns b under other guards. Without any guard it is unguarded.
func reguarded(b runstore.Batch, g runstore.Guards) runstore.Batch {
	var guards []runstore.Guard
	if !g.Fence.IsZero() {
		guards = append(guards, g.Fence)
	}
	if g.Token != nil {
		guards = append(guards, runstore.AtToken(*g.Token))
	}
	for _, v := range g.Versions {
		guards = append(guards, v)
	}
	if g.NextSeq != 0 {
		guards = append(guards, runstore.AtSeq(g.NextSeq))
	}
	if len(g.Statuses) > 0 {
		guards = append(guards, runstore.InStatus(g.Statuses[0], g.Statuses[1:]...))
	}
	if len(guards) == 0 {
		guards = append(guards, runstore.Unguarded("the broken store forgot the guards"))
	}
	fresh := runstore.NewBatch(b.Run(), guards[0], guards[1:]...)
	fresh.ID, fresh.Writes = b.ID, b.Writes
	return fresh
}

// Close implements runstore.RunStore.
func (h *handle) Close() error { return h.Handle.Close() }

// Now implements runstore.RunStore.
func (h *handle) Now(ctx context.Context) (time.Time, error) { return h.Handle.Now(ctx) }

// CreateRun implements runstore.RunStore.
func (h *handle) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	h.readOwnClock()
	create := h.create
	if create == nil {
		create = ownCreate
	}
	created, err := create(ctx, h, spec)
	if err == nil {
		h.granted(created.Lease)
	}
	return created, err
}

// GetRun implements runstore.RunStore.
func (h *handle) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	defer h.reads.Add(1)
	if h.get != nil {
		return h.get(ctx, h, id)
	}
	return h.Handle.GetRun(ctx, id)
}

// AcquireLease implements runstore.RunStore.
func (h *handle) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	h.readOwnClock()
	if h.acquire != nil {
		return h.acquire(ctx, h, req)
	}
	return ownAcquire(ctx, h, req)
}

// RenewLease implements runstore.RunStore.
func (h *handle) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	h.readOwnClock()
	if h.renew != nil {
		return h.renew(ctx, h, req)
	}
	return h.Handle.RenewLease(ctx, req)
}

// ReleaseLease implements runstore.RunStore.
func (h *handle) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	h.readOwnClock()
	if h.release != nil {
		return h.release(ctx, h, req)
	}
	return h.Handle.ReleaseLease(ctx, req)
}

// Commit implements runstore.RunStore.
func (h *handle) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	h.readOwnClock()
	if h.commit != nil {
		return h.commit(ctx, h, b)
	}
	return h.Handle.Commit(ctx, b)
}

// CommitMulti implements runstore.MultiCommitter.
func (h *handle) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	if h.multi != nil {
		return h.multi(ctx, h, batches)
	}
	return h.Handle.CommitMulti(ctx, batches)
}

// ReadJournal implements runstore.RunStore.
func (h *handle) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	defer h.reads.Add(1)
	if h.journal != nil {
		return h.journal(ctx, h, id, from, limit)
	}
	return h.Handle.ReadJournal(ctx, id, from, limit)
}

// ReadRecords implements runstore.RunStore.
func (h *handle) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	defer h.reads.Add(1)
	if h.records != nil {
		return h.records(ctx, h, id, q)
	}
	return h.Handle.ReadRecords(ctx, id, q)
}

// ScanIndex implements runstore.RunStore.
func (h *handle) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	h.readOwnClock()
	defer h.reads.Add(1)
	if h.scan != nil {
		return h.scan(ctx, h, q)
	}
	return h.Handle.ScanIndex(ctx, q)
}

// ReadFeed implements runstore.RunStore.
func (h *handle) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if h.feed != nil && !q.Newest {
		return h.feed(ctx, h, q.After, q.Limit)
	}
	if h.newest != nil && q.Newest {
		return h.newest(ctx, h, q.Limit)
	}
	return h.Handle.ReadFeed(ctx, q)
}

// RunWakeups implements runstore.RunNotifier.
func (h *handle) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (<-chan struct{}, error) {
	if h.wakeups != nil {
		return h.wakeups(ctx, h, id, on)
	}
	return h.Handle.RunWakeups(ctx, id, on)
}

// RaiseEpoch implements runstore.EpochManager.
func (h *handle) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	if h.raise != nil {
		return h.raise(ctx, h, reason)
	}
	return h.Handle.RaiseEpoch(ctx, reason)
}

// ReadTerms implements runstore.TermReader.
func (h *handle) ReadTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	if h.terms != nil {
		return h.terms(ctx, h, id)
	}
	return h.Handle.ReadTerms(ctx, id)
}

// ScanRuns implements runstore.Mover.
func (h *handle) ScanRuns(ctx context.Context, after runstore.RunID, limit int) ([]runstore.RunID, error) {
	if h.ids != nil {
		return h.ids(ctx, h, after, limit)
	}
	return h.Handle.ScanRuns(ctx, after, limit)
}

// ReadPlaced implements runstore.Mover.
func (h *handle) ReadPlaced(ctx context.Context, id runstore.RunID, after runstore.RecordKey, limit int) (runstore.PlacedPage, error) {
	if h.placed != nil {
		return h.placed(ctx, h, id, after, limit)
	}
	return h.Handle.ReadPlaced(ctx, id, after, limit)
}

// Import implements runstore.Mover.
func (h *handle) Import(ctx context.Context, part runstore.Import) (runstore.Committed, error) {
	if h.imports != nil {
		return h.imports(ctx, h, part)
	}
	return h.Handle.Import(ctx, part)
}

func ownCreate(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
	return h.Handle.CreateRun(ctx, spec)
}

func ownAcquire(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := h.Handle.AcquireLease(ctx, req)
	if err == nil {
		h.granted(granted.Lease)
	}
	return granted, err
}
