package bigtable

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// ByTest is the metadata of requests that a test makes through one of the functions
// here.
const ByTest = "tapestore-test"

func byTest(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, ByTest, "yes")
}

// StopWorkers ends what brings a handle's events into the feed and what clears up.
func StopWorkers(s *Store) {
	close(s.engine.draining)
	s.engine.background.Wait()
	s.engine.draining = make(chan struct{}) // for Close
}

// Publish brings the events of runs into the feed.
func Publish(ctx context.Context, s *Store, ids ...runstore.RunID) error {
	overdue := map[runstore.RunID]int64{}
	for _, id := range ids {
		overdue[id] = math.MaxInt64
	}
	return s.engine.feed.publishOverdue(byTest(ctx), overdue)
}

// PublishAgain publishes the events of runs as after an error, which makes the runs pending again.
func PublishAgain(ctx context.Context, s *Store, ids ...runstore.RunID) {
	s.engine.feed.pending.add(ids...)
	s.engine.feed.publishPending(byTest(ctx))
}

// Seal moves the events of a run that has many into segments.
func Seal(ctx context.Context, s *Store, id runstore.RunID) error {
	ctx = byTest(ctx)
	for {
		r, _, err := s.engine.lock(ctx, id)
		if err != nil {
			return err
		}
		s.engine.unlock(r, nil)
		if err := s.engine.prepareSeal(ctx, r); err != nil {
			return err
		}
		e, err := s.engine.write(ctx, id, needs{fresh: true}, func(r *cachedRun, _ time.Time) (*edit, error) {
			p := r.pendingSeal.Load()
			if p == nil || !r.exists() || !p.isNext(&r.head) {
				r.pendingSeal.Store(nil)
				return nil, nil
			}
			e := newEdit(r, runstore.FromMicros(r.head.Time))
			e.seal(p)
			return e, nil
		})
		if err != nil || e == nil {
			return err
		}
	}
}

// PrepareSeal copies the events of a run that has many, as a handle does in the background. The next write of
// the handle records the segments.
func PrepareSeal(ctx context.Context, s *Store, id runstore.RunID) error {
	r, _, err := s.engine.lock(ctx, id)
	if err != nil {
		return err
	}
	s.engine.unlock(r, nil)
	return s.engine.prepareSeal(byTest(ctx), r)
}

// Ahead has f run while a handle takes its clock to be an hour ahead.
func Ahead(s *Store, f func()) { Shift(s, time.Hour, f) }

// Shift has f run while a handle takes its clock to be off by d.
func Shift(s *Store, d time.Duration, f func()) {
	s.engine.clock.mu.Lock()
	known := s.engine.clock.last
	s.engine.clock.last.server = known.server.Add(d)
	s.engine.clock.mu.Unlock()
	f()
	s.engine.clock.mu.Lock()
	s.engine.clock.last = known
	s.engine.clock.mu.Unlock()
}

// OrphanScan scans the marks of all shards twice, claimed or not: what the first scan finds lacking, the
// second publishes. The handle must be one without workers.
func OrphanScan(ctx context.Context, s *Store) {
	OrphanScanOnce(ctx, s)
	OrphanScanOnce(ctx, s)
}

// OrphanScanOnce scans the marks of all shards, claimed or not, and retires those of idle runs. The handle must be
// one without workers.
func OrphanScanOnce(ctx context.Context, s *Store) {
	all := make([]int, shards)
	for i := range all {
		all[i] = i
	}
	u := s.engine.upkeep
	renewal := u.renewal
	u.setClaimed(all)
	u.renewal = math.MaxInt64
	_ = s.engine.orphanScan(byTest(ctx), all)
	u.renewal = renewal
	Retire(ctx, s)
}

// ScanClaimed scans the marks that a handle without workers has claimed, and returns the number of shards.
func ScanClaimed(ctx context.Context, s *Store) int { return s.engine.upkeep.scanClaimed(byTest(ctx)) }

// AgeClaims makes the claims that a handle has met old.
func AgeClaims(s *Store) {
	for i := range s.engine.upkeep.observed {
		s.engine.upkeep.observed[i].since = localclock.Reading{}
	}
}

// RenewOften has a handle without workers renew its claims after each page of a scan.
func RenewOften(s *Store) { s.engine.upkeep.renewal = 0 }

// CollectGarbage collects garbage once.
func CollectGarbage(ctx context.Context, s *Store) error {
	_, err := s.engine.collectGarbage(byTest(ctx))
	return err
}

// EmptyGarbage deletes now what would be deleted in the background, sooner or later.
func EmptyGarbage(ctx context.Context, s *Store) {
	s.engine.garbage.mu.Lock()
	for i := range s.engine.garbage.waiting {
		s.engine.garbage.waiting[i].since = localclock.Reading{}
	}
	s.engine.garbage.mu.Unlock()
	s.engine.garbage.expireGrace()
	s.engine.garbage.deleteReady(byTest(ctx))
}

// AgeGarbage makes what a handle is to delete look as if it had been found that long ago.
func AgeGarbage(s *Store, age time.Duration) {
	found := s.engine.clock.local.Read().Add(-age)
	for _, all := range [][]garbageRow{s.engine.garbage.ready, s.engine.garbage.waiting} {
		for i := range all {
			if !all[i].at.IsZero() {
				all[i].at = found
			}
		}
	}
}

// DeleteGarbage deletes now what may be deleted without waiting for readers.
func DeleteGarbage(ctx context.Context, s *Store) { s.engine.garbage.deleteReady(byTest(ctx)) }

// SetRetryTimeout changes how long the operations of a handle without workers try again.
func SetRetryTimeout(s *Store, d time.Duration) { s.engine.opts.RetryTimeout = d }

// SetTicketTimeout changes how long the operations of a handle without workers wait for another
// one's ticket.
func SetTicketTimeout(s *Store, d time.Duration) { s.engine.ticketTimeout = d }

// Bound has a handle wait for one request, and for a scan, for as long as a slow machine may
// take.
func Bound(o *Options, d time.Duration) { o.bound = d }

// MoveAbove has records leave the row of their run above so many bytes, and cold ones be rewritten early.
func MoveAbove(o *Options, bytes int64) { o.hot = bytes }

// MoveRecords moves records out of a run's row, if it is heavy, and rewrites cold ones.
func MoveRecords(ctx context.Context, s *Store, id runstore.RunID, rewrite bool) error {
	ctx = byTest(ctx)
	again, err := s.engine.withLock(ctx, id, s.engine.moveRecords)
	for again = again || rewrite; again && err == nil; {
		again, err = s.engine.withLock(ctx, id, s.engine.rewrite)
	}
	return err
}

// MoveRecordsOnly is MoveRecords for a handle that dies before it goes on with a rewriting.
func MoveRecordsOnly(ctx context.Context, s *Store, id runstore.RunID) error {
	_, err := s.engine.withLock(byTest(ctx), id, s.engine.moveRecords)
	return err
}

// MoveIfNeeded does what a handle does in the background after a write of a run.
func MoveIfNeeded(ctx context.Context, s *Store, id runstore.RunID) error {
	heavy, err := s.engine.withLock(ctx, id, func(_ context.Context, r *cachedRun, _ *outcome.Backoff) (bool, error) {
		return s.engine.needsMove(r), nil
	})
	if err != nil || !heavy {
		return err
	}
	return MoveRecords(ctx, s, id, false)
}

// Moves returns how many moves the row of a run lists, and what the row holds of records.
func Moves(ctx context.Context, s *Store, id runstore.RunID) (moves int, bytes int64, err error) {
	r, err := s.engine.readRun(byTest(ctx), id, moveListFilter())
	if err != nil {
		return 0, 0, err
	}
	c, err := r.moveList()
	if c != nil {
		moves = len(c.moves)
	}
	return moves, r.head.RecordBytes, err
}

// SetMoveAbove is Hot for a handle that is open.
func SetMoveAbove(s *Store, bytes int64) {
	s.engine.hotBytes, s.engine.maxTombstones, s.engine.rewriteRows = bytes, 10, 10
}

// CopiesOfEpochs returns a request that copies the epochs as they are now, like one that arrives late.
func CopiesOfEpochs(t testing.TB, s *Store) (arrive func()) {
	t.Helper()
	x, err := s.engine.readEpochs(byTest(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := s.engine.copyEpochs(byTest(t.Context()), x); err != nil {
			t.Fatal(err)
		}
	}
}

// ColdRows returns how many rows of cold records a run should have: one for each key and for each move.
func ColdRows(ctx context.Context, s *Store, id runstore.RunID) (int, error) {
	r, err := s.engine.readRun(byTest(ctx), id, moveListFilter())
	if err != nil {
		return 0, err
	}
	c, err := r.moveList()
	if err != nil || c == nil {
		return 0, err
	}
	return int(c.Keys) + len(c.moves), nil
}

// Rewrite makes one step of a rewriting, and reports whether it needs another.
func Rewrite(ctx context.Context, s *Store, id runstore.RunID) (more bool, err error) {
	return s.engine.withLock(byTest(ctx), id, s.engine.rewrite)
}

// DropTombstones deletes, of the rows that a handle is to delete, the latest of each record.
func DropTombstones(ctx context.Context, s *Store) error {
	var all []mutation
	last := ""
	var keys []string
	for _, g := range s.engine.garbage.ready {
		if !g.at.IsZero() {
			keys = append(keys, g.key)
		}
	}
	for _, k := range slices.Sorted(slices.Values(keys)) {
		if k[:1] == kindCold && len(k) > 16 && k[:len(k)-16] != last {
			last = k[:len(k)-16]
			all = append(all, remove(k))
		}
	}
	return s.engine.writeAll(byTest(ctx), all)
}

// Compact compacts blocks of the feed's log that follow a hash.
func Compact(ctx context.Context, s *Store, hash string) error {
	return s.engine.compactNext(byTest(ctx), hash)
}

// SkipSegments makes the log of the feed go on with the next number that begins a step.
func SkipSegments(ctx context.Context, s *Store) error {
	ctx = byTest(ctx)
	if err := s.engine.feed.catchUp(ctx); err != nil {
		return err
	}
	applied, err := s.engine.createPage(ctx, &feedPage{By: 1, Next: (s.engine.feed.end/pagesPerStep + 1) * pagesPerStep, number: s.engine.feed.end}, false)
	if err == nil && !applied {
		err = errBusy
	}
	return err
}

// Shard returns the shard of a run's entries in indexes.
func Shard(id runstore.RunID) string { return shardOf(string(id)) }

// OpenIn has a handle look after the epoch as it does when it is opened in a cluster; "" is an unknown one.
func OpenIn(ctx context.Context, s *Store, cluster string) error {
	s.engine.cluster = cluster
	return s.engine.ensureEpoch(byTest(ctx))
}

// JudgeIncarnation returns what the doctor finds about the table of a handle in a cluster.
func JudgeIncarnation(ctx context.Context, s *Store, cluster string) (admin.Finding, error) {
	x, err := s.engine.readEpochs(byTest(ctx))
	if err != nil {
		return admin.Finding{}, err
	}
	var r admin.Report
	(&administration{engine: &engine{opts: s.engine.opts, cluster: cluster}}).judgeIncarnation(x, &r)
	return r[0], nil
}

// LearnEpochs has a handle read the epochs.
func LearnEpochs(ctx context.Context, s *Store) error {
	_, err := s.engine.readEpochs(byTest(ctx))
	return err
}

// RowsOfMoves returns how many rows the listed moves of a run have written, and of how many records.
func RowsOfMoves(ctx context.Context, s *Store, id runstore.RunID) (rows, records int, err error) {
	r, err := s.engine.readRun(byTest(ctx), id, moveListFilter())
	if err != nil {
		return 0, 0, err
	}
	c, err := r.moveList()
	if err != nil || c == nil {
		return 0, 0, err
	}
	err = s.engine.scanPrefix(byTest(ctx), fingerprintPrefix(id, c.generation), func(keys []string) error {
		return s.engine.readList(byTest(ctx), keys, latest(column(familyOther, "")), func(r bigtable.Row) error {
			key := r.Key()[len(r.Key())-16:]
			if nonce, listed := c.nonceOf(fromBE64(key)); listed && nonce == uint64(fromBE64(key[8:])) {
				rows += len(cell(r, familyOther, "")) / 4
			}
			return nil
		})
	})
	return rows, int(c.Keys), err
}

// DropDigests removes the digests of a run's cold records, which earlier versions do not write.
func DropDigests(ctx context.Context, s *Store, id runstore.RunID) error {
	ctx = byTest(ctx)
	r, err := s.engine.readRun(ctx, id)
	if err != nil {
		return err
	}
	var all []mutation
	err = s.engine.scanPrefix(ctx, fingerprintPrefix(id, r.head.Generation), func(keys []string) error {
		for _, k := range keys {
			m := bigtable.NewMutation()
			m.DeleteCellsInColumn(familyOther, columnDigests)
			all = append(all, mutation{k, m, len(k)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.engine.writeAll(ctx, all)
}
