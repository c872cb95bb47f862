package spanner

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/iterator"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/rules"
)

// guarded is everything that decides about a write of one run, read in one request.
type guarded struct {
	Now     time.Time
	Head    []*head
	Records []*record
	Done    []*result
	Epoch   spanner.NullInt64

	key            runKey
	ring           int64 // how many results the run keeps
	feedShards     int64
	ambiguous      bool               // a former attempt may have been committed
	alreadyApplied bool               // the write was made, with those of other runs that it is one with
	sentAt         localclock.Reading // when the statement left, on the clock of this process
	records        map[runstore.RecordKey]*record
}

// result is what a write answered.
type result struct {
	Callers   bool
	ID        []byte `spanner:"Id"`
	FirstSeq  int64
	LastSeq   int64
	Time      time.Time
	Token     int64
	Versions  []int64
	Whole     []byte            // see request
	FormerEnd spanner.NullInt64 // with a grant: how the one before ended
}

// resultID names a result among those that a run keeps.
type resultID struct {
	callers bool               // the caller chose the id
	kind    spanner.NullString // of what: that of the schema's column
	id      []byte
}

// callersID returns the id of a result that package rules names, none for an empty name.
func callersID(name string) resultID {
	if name == "" {
		return resultID{}
	}
	return resultID{callers: true, kind: spanner.NullString{StringVal: name[:1], Valid: name[:1] != batchKind}, id: stored(name[1:])}
}

// batchKind is the letter of rules.BatchResult. It is stored as NULL, as in the rows of
// version 2 of the schema, which are all of batches.
const batchKind = "b"

func (i resultID) kindOf() string {
	if !i.kind.Valid {
		return batchKind
	}
	return i.kind.StringVal
}

// guardShape is what a guard statement reads besides the heads of its runs. Statements name
// nothing that is not asked for: each table costs a seek, and a plan of its own.
type guardShape struct {
	runs                   int
	records, result, epoch bool
}

// The columns of a guard statement for run number #: rows by their whole keys.
const (
	guardHead    = "CURRENT_TIMESTAMP() AS Now,\n\tARRAY(SELECT AS STRUCT " + headColumns
	guardRun     = " FROM Runs AS h WHERE h.RunHash = @hash# AND h.Run = @run#) AS Head"
	guardRecords = `,
	ARRAY(SELECT AS STRUCT ` + recordColumns + ` FROM Records AS k
		WHERE k.RunHash = @hash# AND k.Run = @run# AND k.Key IN UNNEST(@keys#)) AS Records`
	guardResult = `,
	ARRAY(SELECT AS STRUCT w.Callers, w.Id, w.FirstSeq, w.LastSeq, w.Time, w.Token, w.Versions, w.Whole, w.FormerEnd
		FROM Writes@{FORCE_INDEX=WritesById} AS w
		WHERE w.RunHash = @hash# AND w.Run = @run# AND w.Callers = @callers# AND w.Id = @id# AND IFNULL(w.Kind, 'b') = @kind#) AS Done`
	guardEpoch = `,
	(SELECT e.Epoch FROM GrantEpochs AS e WHERE e.Shard = @shard#) AS Epoch`

	// lockExclusive takes the locks of the commit at once. With shared ones, two writers of
	// a run both read its row, and neither can write it before the other is aborted.
	lockExclusive = "@{LOCK_SCANNED_RANGES=exclusive}\n"
)

// text returns the statement. One for a grant takes shared locks: an exclusive one on the
// epoch's row would have the grants of a shard wait for each other.
func (g guardShape) text() string {
	if text, ok := guardTexts.Load(g); ok {
		return text.(string)
	}
	columns := guardHead
	if g.epoch {
		columns += ", h.FormerGrants"
	}
	columns += guardRun
	if g.records {
		columns += guardRecords
	}
	if g.result {
		columns += guardResult
	}
	if g.epoch {
		columns += guardEpoch
	}
	parts := make([]string, g.runs)
	for i := range parts {
		parts[i] = strings.ReplaceAll("SELECT "+columns+",\n\t# AS Number", "#", strconv.Itoa(i))
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

var guardTexts sync.Map // of guardShape

// asked is what a guard statement is to read of a run besides its head.
type guardQuery struct {
	key   runKey
	keys  []runstore.RecordKey
	id    resultID // of the write whose result is looked for, none if it is empty
	epoch bool     // and the run's former grants: for a grant
}

// guard returns the guarded state of runs.
func (s *Store) guard(ctx context.Context, tx *spanner.ReadWriteTransaction, runs []guardQuery) ([]*guarded, error) {
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
		params["hash"+n], params["run"+n], params["keys"+n] = a.key.hash, a.key.run, keys
		params["callers"+n], params["id"+n] = spanner.NullBool{Bool: a.id.callers, Valid: len(a.id.id) > 0}, a.id.id
		params["kind"+n] = a.id.kindOf()
		params["shard"+n] = a.key.shard
	}
	began := s.here.Read()
	rows := tx.QueryWithOptions(ctx, spanner.Statement{SQL: shape.text(), Params: params}, s.query("guard"))
	defer rows.Stop()
	var all []*guarded
	for {
		row, err := rows.Next()
		if errors.Is(err, iterator.Done) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		g := &guarded{key: runs[len(all)].key, ring: s.ring, feedShards: s.feedShards, sentAt: began, records: map[runstore.RecordKey]*record{}}
		if err := row.ToStructLenient(g); err != nil {
			return nil, err
		}
		for _, r := range g.Records {
			g.records[runstore.RecordKey(r.Key)] = r
		}
		all = append(all, g)
	}
}

// head returns the run's head, or ErrNotFound.
func (g *guarded) head() (*head, error) {
	if len(g.Head) == 0 || !g.Head[0].Created.Valid {
		return nil, runstore.ErrNotFound
	}
	return g.Head[0], nil
}

// judged returns the head as the rules judge it, with the epoch if it was read.
func (g *guarded) judged() (rules.Head, error) {
	h, err := g.head()
	if err != nil {
		return rules.Head{}, err
	}
	r := h.rules()
	r.Epoch = runstore.Epoch(g.Epoch.Int64)
	return r, nil
}

// now is the store clock of the write: the run's never goes back, whichever of Spanner's
// servers was asked.
func (g *guarded) now() time.Time {
	now := g.Now
	if len(g.Head) > 0 && g.Head[0].Seen.After(now) {
		now = g.Head[0].Seen
	}
	return now.UTC().Truncate(runstore.TimePrecision)
}

func (g *guarded) version(key runstore.RecordKey) (runstore.Version, error) {
	if r := g.records[key]; r != nil {
		return runstore.Version(r.Version.Int64), nil
	}
	return 0, nil
}
