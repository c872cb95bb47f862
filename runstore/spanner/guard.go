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
	callers bool   // chosen by the caller, not by the adapter
	kind    string // of write: the column Kind
	id      []byte
}

// callersID returns the id of a result that package rules names (rules.BatchResult and the like).
func callersID(name string) resultID {
	return resultID{callers: true, kind: name[:1], id: stored(name[1:])}
}

// batchKind is the kind of rules.BatchResult, and of a result under an id of the adapter. Earlier
// programs stored NULL instead.
const batchKind = "b"

// guardShape selects what a guard statement reads besides the heads of its runs: the parts of
// sql/write_guard.sql.
type guardShape struct {
	runs                   int
	records, result, epoch bool
}

// lockExclusive makes a guard statement take the locks of the commit. With shared locks, two writers
// of a run both read its row, and neither can write it until Spanner aborts the other.
const lockExclusive = "@{LOCK_SCANNED_RANGES=exclusive}\n"

// guardTexts has the SQL of each guardShape that was used.
var guardTexts sync.Map

// text returns the statement's SQL. The statement of a grant takes shared locks: an exclusive lock on
// the epoch's row would serialize all grants of a shard.
func (g guardShape) text() string {
	if text, ok := guardTexts.Load(g); ok {
		return text.(string)
	}
	var parts []string
	for part, wanted := range map[string]bool{"records": g.records, "result": g.result, "epoch": g.epoch} {
		if wanted {
			parts = append(parts, part)
		}
	}
	one := sqlFiles.Statement("write_guard", parts...)
	runs := make([]string, g.runs)
	for i := range runs {
		n := strconv.Itoa(i)
		runs[i] = strings.NewReplacer("_0", "_"+n, "0 AS Number", n+" AS Number").Replace(one)
	}
	text := strings.Join(runs, "\nUNION ALL\n")
	if g.runs > 1 {
		text += "\nORDER BY Number"
	}
	if !g.epoch {
		text = lockExclusive + text
	}
	guardTexts.Store(g, text)
	return text
}

// guard reads the state of the requests' runs in the transaction, with one statement. The result has
// the order of the requests. After an ambiguous commit guard looks up the results of all writes, also
// of those without a caller's id.
func (s *engine) guard(ctx context.Context, tx *spanner.ReadWriteTransaction, requests []*request, ambiguous bool) (all []*guarded, err error) {
	params, shape := map[string]any{}, guardShape{runs: len(requests)}
	for i, r := range requests {
		k, id := keyOf(r.run), r.lookedUp(ambiguous)
		shape.records = shape.records || len(r.keys) > 0
		shape.result = shape.result || len(id.id) > 0
		shape.epoch = shape.epoch || r.epoch
		n := strconv.Itoa(i)
		keys := make([][]byte, len(r.keys))
		for j, key := range r.keys {
			keys[j] = stored(key)
		}
		params["hash_"+n], params["run_"+n], params["shard_"+n], params["keys_"+n] = k.hash, k.run, k.shard, keys
		params["callers_"+n], params["id_"+n], params["kind_"+n] = id.callers, id.id, id.kind
	}
	began := s.here.Read()
	err = spanner.SelectAll(tx.QueryWithOptions(ctx, spanner.Statement{SQL: shape.text(), Params: params}, s.query("guard")), &all, spanner.WithLenient())
	for i, g := range all {
		g.key, g.ring, g.feedShards, g.sentAt, g.records = keyOf(requests[i].run), s.ring, s.feedShards, began, map[runstore.RecordKey]*record{}
		for _, r := range g.Records {
			g.records[runstore.RecordKey(r.Key)] = r
		}
	}
	return all, err
}

// judged returns the run's head in the form that package rules judges, with the epoch if it was
// read. It returns ErrNotFound if there is no run or it was purged.
func (g *guarded) judged() (rules.Head, error) {
	if len(g.Head) == 0 || !g.Head[0].Created.Valid {
		return rules.Head{}, runstore.ErrNotFound
	}
	h := g.Head[0].rules()
	h.Epoch = runstore.Epoch(g.Epoch.Int64)
	return h, nil
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
