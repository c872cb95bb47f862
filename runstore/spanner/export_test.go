package spanner

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// Statements are the texts of all queries and DML of the adapter, by name.
func Statements() map[string]string {
	all := map[string]string{
		"guard": guardShape{1, true, true, true}.text(), "guard of three": guardShape{3, true, true, false}.text(),
		"guard of a head": guardShape{runs: 1}.text(), "guard of an id": guardShape{runs: 1, result: true}.text(),
		"now": sqlClockNow, "run": sqlRunRead, "feed": sqlFeedPage, "newest feed": sqlFeedNewest,
		"epoch": sqlEpochRead, "end grants": sqlEpochEndGrants,
		"tables": sqlSchemaTables, "policies": sqlSchemaPolicies, "empty feed": sqlSchemaEmptyFeed,
	}
	for kind, text := range scans {
		all[fmt.Sprintf("scan %+v", kind)] = text
	}
	return all
}

// Scans are the texts of all scans of indexes.
func Scans() []string { return slices.Collect(maps.Values(scans)) }

// StatementFaults returns what is wrong with the files of the folder sql.
func StatementFaults() []string {
	_ = guardShape{runs: 1}.text() // the only statement that is not loaded with the package
	return sqlFiles.Faults()
}

// Migrations are the statements of each version of the schema.
func Migrations() [][]string { return migrations }

// Attempts is how often a transaction of a write was begun.
func (s *Store) Attempts() int64 { return s.engine.attempts.Load() }

// awaitFirstPass waits for the pass of the purger after the opening of the handle. The purger then uses
// none of the values that tests set, until it is started.
func (s *Store) awaitFirstPass() {
	for s.engine.purger.passes.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
}

// SetAttemptTimeout is for a handle that nobody uses yet.
func (s *Store) SetAttemptTimeout(d time.Duration) {
	s.awaitFirstPass()
	s.engine.attemptTimeout = d
}

// SetRemembered changes how many results a run keeps. All handles of a database must have
// the same number, and none may be in use yet.
func (s *Store) SetRemembered(n int64) { s.engine.ring = n }

// SetPurgeBatch changes how many events, and how many records, one transaction of a purge
// deletes. The handle must not be in use yet.
func (s *Store) SetPurgeBatch(n int) {
	s.awaitFirstPass()
	s.engine.purgeBatch = n
}

// SetPurgedPage changes how many purged runs are listed at a time. The handle must not be in use
// yet.
func (s *Store) SetPurgedPage(n int) {
	s.awaitFirstPass()
	s.engine.purgedPage = n
}

// MoveEntry moves the entry of a lease's run as a scan that has seen the lease does.
func (s *Store) MoveEntry(l runstore.Lease) {
	k := keyOf(l.Run)
	s.engine.moveEntries([]seenGrant{{k.hash, k.run, int64(l.Token), []byte(l.Grant)}})
}

// SetRunQueueWait is for a handle that nobody uses yet.
func (s *Store) SetRunQueueWait(d time.Duration) { s.engine.runQueueWait = d }

// SetMaxMutations is for a handle that nobody uses, but for a write whose commit is kept.
func (s *Store) SetMaxMutations(n int) { s.engine.maxMutations = n }

// SetWindows changes how many bits the microseconds of a window of the feed have, and its last
// rank. All handles of a database must have the same, and none may be in use yet.
func (s *Store) SetWindows(bits int, maxRank int64) { s.engine.windows = windows{bits, maxRank} }

// Slots is how many positions a microsecond has, Shards over how many parts of a table
// what is ordered by time is spread.
const (
	Slots  = slots
	Shards = shards
)

// KeyOf returns the hash of a run's id and its shard.
func KeyOf(id runstore.RunID) (hash, shard int64) {
	k := keyOf(id)
	return k.hash, k.shard
}

// SkipGaps returns the position at which a reader behind after begins, once the gaps were added.
func SkipGaps(after runstore.Position, added ...[2]runstore.Position) runstore.Position {
	var g gaps
	for _, one := range added {
		g.add(one[0], one[1])
	}
	return g.skip(after)
}

// SkipGapsBack returns the window before which a reader goes on that has read the windows from before on,
// once the gaps were added.
func SkipGapsBack(before int64, added ...[2]runstore.Position) int64 {
	var g gaps
	for _, one := range added {
		g.add(one[0], one[1])
	}
	return g.skipBack(before)
}

// PositionAt returns a position by its window and rank.
func PositionAt(window, rank int64) runstore.Position { return position(window, rank) }

// NewGaps returns the functions that add a gap of the feed to those of a handle, and that skip them.
func NewGaps() (add func(after, last runstore.Position), skip func(after runstore.Position) runstore.Position) {
	var g gaps
	return g.add, g.skip
}

// MaxGaps is how many gaps of the feed a handle keeps.
const MaxGaps = maxGaps

// FeedShard returns the shard of the feed that a slot is in.
func FeedShard(slot int64) int64 { return feedShard(slot, shards) }

// PositionsOf returns the positions of places of the feed that were committed at these times, the
// first at the beginning of a window.
func PositionsOf(committed ...time.Time) (all []runstore.Position) {
	count := ranks{windows: windows{windowBits, maxRank}}
	for _, at := range committed {
		all = append(all, count.next(spanner.NullTime{Time: at, Valid: true}))
	}
	return all
}

// WindowAt returns when the window of a position begins, and the event's rank in it.
func WindowAt(p runstore.Position) (begin time.Time, rank int64) {
	window, rank := split(p)
	return windows{windowBits, maxRank}.begin(window), rank
}

// LooksBack returns the longest time range in which the end of the feed is looked for.
func LooksBack() time.Duration {
	return time.Duration(slices.Max(lookBack)) * time.Second
}
