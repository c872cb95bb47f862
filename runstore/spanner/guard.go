package spanner

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// guarded is the state of one run that a write is decided on, read by one statement.
type guarded struct {
	Now     time.Time
	Head    []*head
	Records []*record
	Done    []*result
	Epoch   spanner.NullInt64

	key            runKey
	ring           int64 // size of each ring of results
	feedShards     int64
	ambiguous      bool               // an earlier attempt of this call may have been committed
	alreadyApplied bool               // the commit over several runs that this write is part of was applied before
	sentAt         localclock.Reading // when the statement was sent, on this process's clock
	records        map[runstore.RecordKey]*record
}

// result is a row of Writes without its key: the stored result of an earlier write.
type result struct {
	FirstSeq  int64
	LastSeq   int64
	Time      time.Time
	Token     int64
	Versions  []int64
	Whole     []byte            // the multi-commit id, see request
	FormerEnd spanner.NullInt64 // for a grant: how the previous grant ended
}

// resultID identifies a result among those that a run keeps.
type resultID struct {
	callers bool               // chosen by the caller, not by the adapter
	kind    spanner.NullString // of write: the column Kind
	id      []byte
}

// callersID returns the id of a result that package rules names (rules.BatchResult and the like),
// or the zero id for an empty name.
func callersID(name string) resultID {
	if name == "" {
		return resultID{}
	}
	return resultID{callers: true, kind: spanner.NullString{StringVal: name[:1], Valid: name[:1] != batchKind}, id: stored(name[1:])}
}

// batchKind is the kind of rules.BatchResult. It is stored as NULL, as in rows that version 2 of
// the schema wrote, all of which are of batches.
const batchKind = "b"

// kindOf returns the kind, with batchKind for NULL.
func (i resultID) kindOf() string {
	if !i.kind.Valid {
		return batchKind
	}
	return i.kind.StringVal
}

// guardShape selects what a guard statement reads besides the heads of its runs: the parts of
// sql/write_guard.sql.
type guardShape struct {
	runs                   int
	records, result, epoch bool
}

// lockExclusive makes a guard statement take the locks of the commit. With shared locks, two writers
// of a run both read its row, and neither can write it until Spanner aborts the other.
const lockExclusive = "@{LOCK_SCANNED_RANGES=exclusive}\n"

// text returns the statement's SQL, from a cache. The statement of a grant takes shared locks: an
// exclusive lock on the epoch's row would serialize all grants of a shard.
func (g guardShape) text() string {
	if text, ok := guardTexts.Load(g); ok {
		return text.(string)
	}
	var kind int
	for bit, part := range []bool{g.records, g.result, g.epoch} {
		if part {
			kind |= 1 << bit
		}
	}
	parts := make([]string, g.runs)
	for i := range parts {
		n := strconv.Itoa(i)
		parts[i] = strings.NewReplacer("_0", "_"+n, "0 AS Number", n+" AS Number").Replace(sqlWriteGuard[kind])
	}
	text := strings.Join(parts, "\nUNION ALL\n")
	if g.runs > 1 {
		text += "\nORDER BY Number"
	}
	if !g.epoch {
		text = lockExclusive + text
	}
	guardTexts.Store(g, text)
	return text
}

// sqlWriteGuard has the statement of one run for each set of parts: bit 0 records, bit 1 result,
// bit 2 epoch.
var sqlWriteGuard = func() (all [8]string) {
	for kind := range all {
		var parts []string
		for bit, part := range []string{"records", "result", "epoch"} {
			if kind&(1<<bit) != 0 {
				parts = append(parts, part)
			}
		}
		all[kind] = sqlFiles.Statement("write_guard", parts...)
	}
	return all
}()

var guardTexts sync.Map // SQL by guardShape

// guardQuery is what a guard statement reads of one run besides its head.
type guardQuery struct {
	key   runKey
	keys  []runstore.RecordKey
	id    resultID // of the result to look up; zero for none
	epoch bool     // read the epoch and the run's former grants: for a grant
}

// guard reads the state of the runs in the transaction, with one statement. The result has the
// order of runs.
func (s *engine) guard(ctx context.Context, tx *spanner.ReadWriteTransaction, runs []guardQuery) ([]*guarded, error) {
	params, shape := map[string]any{}, guardShape{runs: len(runs)}
	for i, a := range runs {
		shape.records = shape.records || len(a.keys) > 0
		shape.result = shape.result || len(a.id.id) > 0
		shape.epoch = shape.epoch || a.epoch
		n := strconv.Itoa(i)
		keys := make([][]byte, len(a.keys))
		for j, k := range a.keys {
			keys[j] = stored(k)
		}
		params["hash_"+n], params["run_"+n], params["keys_"+n] = a.key.hash, a.key.run, keys
		params["callers_"+n], params["id_"+n] = spanner.NullBool{Bool: a.id.callers, Valid: len(a.id.id) > 0}, a.id.id
		params["kind_"+n] = a.id.kindOf()
		params["shard_"+n] = a.key.shard
	}
	began := s.here.Read()
	var all []*guarded
	err := tx.QueryWithOptions(ctx, spanner.Statement{SQL: shape.text(), Params: params}, s.query("guard")).Do(func(row *spanner.Row) error {
		g := &guarded{key: runs[len(all)].key, ring: s.ring, feedShards: s.feedShards, sentAt: began, records: map[runstore.RecordKey]*record{}}
		if err := row.ToStructLenient(g); err != nil {
			return err
		}
		for _, r := range g.Records {
			g.records[runstore.RecordKey(r.Key)] = r
		}
		all = append(all, g)
		return nil
	})
	return all, err
}

// head returns the run's head, or ErrNotFound if there is no run or it was purged.
func (g *guarded) head() (*head, error) {
	if len(g.Head) == 0 || !g.Head[0].Created.Valid {
		return nil, runstore.ErrNotFound
	}
	return g.Head[0], nil
}

// judged returns the head in the form that package rules judges, with the epoch if it was read.
func (g *guarded) judged() (rules.Head, error) {
	h, err := g.head()
	if err != nil {
		return rules.Head{}, err
	}
	r := h.rules()
	r.Epoch = runstore.Epoch(g.Epoch.Int64)
	return r, nil
}

// now returns the store clock of the write. It is never earlier than the run's last write,
// whichever of Spanner's servers was asked.
func (g *guarded) now() time.Time {
	now := g.Now
	if len(g.Head) > 0 && g.Head[0].Seen.After(now) {
		now = g.Head[0].Seen
	}
	return now.UTC().Truncate(runstore.TimePrecision)
}

// version returns the version of a record that was read, 0 for an absent one. It never fails.
func (g *guarded) version(key runstore.RecordKey) (runstore.Version, error) {
	if r := g.records[key]; r != nil {
		return runstore.Version(r.Version.Int64), nil
	}
	return 0, nil
}
