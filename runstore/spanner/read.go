package spanner

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/iterator"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// Reads are single-use read-only transactions: they take no locks and wait for no writer. Strong
// reads see every commit that was acknowledged before.
//
// A run's journal and records each begin with a marker row of the adapter, at seq 0 and under the
// empty key. It exists as long as the run does, so one read of a range of keys returns the rows
// and shows whether there is a run.

// reader begins a read in a transaction.
type reader func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator

// sql returns the reader of the rows of a statement.
func (s *engine) sql(tag string, stmt spanner.Statement) reader {
	return func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator {
		return tx.QueryWithOptions(ctx, stmt, s.query(tag))
	}
}

// byKey returns the reader of rows of a table by their keys.
func byKey(table string, keys spanner.KeySet, columns []string, options *spanner.ReadOptions) reader {
	return func(ctx context.Context, tx *spanner.ReadOnlyTransaction) *spanner.RowIterator {
		return tx.ReadWithOptions(ctx, table, keys, columns, options)
	}
}

// selectAll returns all rows of a strong read. Those of a page that is bounded in bytes are read with
// [engine.rows].
func selectAll[T any](ctx context.Context, s *engine, read reader) (all []T, err error) {
	err = s.retry(ctx, func(ctx context.Context) error {
		all = nil
		return spanner.SelectAll(read(ctx, s.client.Single()), &all, spanner.WithLenient())
	})
	return all, err
}

// selectOne returns the first row of a strong read, and whether there is one.
func selectOne[T any](ctx context.Context, s *engine, read reader) (one T, found bool, err error) {
	all, err := selectAll[T](ctx, s, read)
	if err != nil || len(all) == 0 {
		return one, false, err
	}
	return all[0], true, nil
}

// rows passes the rows of a read with a timestamp bound to use until that returns false or an error.
// begin is called before the first row, and again whenever the read is repeated. A row that a
// statement marks as Purged starts the purger.
func (s *engine) rows(ctx context.Context, at spanner.TimestampBound, read reader, begin func(), use func(row *spanner.Row) (more bool, err error)) error {
	return s.retry(ctx, func(ctx context.Context) error {
		begin()
		rows := read(ctx, s.client.Single().WithTimestampBound(at))
		defer rows.Stop()
		for {
			row, err := rows.Next()
			if errors.Is(err, iterator.Done) {
				return nil
			}
			if err != nil {
				return err
			}
			var purged spanner.NullBool
			if row.ColumnByName("Purged", &purged) == nil && purged.Bool {
				s.purger.start()
			}
			if more, err := use(row); err != nil || !more {
				return err
			}
		}
	})
}

// Now implements adapter.Core.
func (s *engine) Now(ctx context.Context) (time.Time, error) {
	row, _, err := selectOne[struct{ Now time.Time }](ctx, s, s.sql("now", spanner.Statement{SQL: sqlClockNow}))
	return row.Now, err
}

// runRow is a run as sql/run_read.sql and scans return it.
type runRow struct {
	Head         []*head
	Summary      []*record
	SummaryValue []byte
}

// run returns the run. There must be one.
func (r *runRow) run() runstore.Run {
	run := r.Head[0].rules().Run
	if len(r.Summary) > 0 {
		r.Summary[0].Value = r.SummaryValue
		run.Summary = r.Summary[0].public()
	}
	return run
}

// GetRun implements adapter.Core.
func (s *engine) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	row, _, err := selectOne[runRow](ctx, s, s.sql("run", statement(sqlRunRead, id, nil)))
	if err == nil && len(row.Head) == 0 {
		err = runstore.ErrNotFound
	}
	if err != nil {
		return runstore.Run{}, err
	}
	return row.run(), nil
}

// ReadTerms implements runstore.TermReader.
func (s *engine) ReadTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	h, found, err := selectOne[head](ctx, s, s.sql("terms", statement(sqlTermsRead, id, nil)))
	if err == nil && !found {
		err = runstore.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return h.rules().ListTerms()
}

// statement returns a statement whose parameters include the run's key.
func statement(sql string, id runstore.RunID, params map[string]any) spanner.Statement {
	k := keyOf(id)
	all := map[string]any{"hash": k.hash, "run": k.run}
	maps.Copy(all, params)
	return spanner.Statement{SQL: sql, Params: all}
}

// event is an event's row, from the journal or the feed.
type event struct {
	Run       []byte
	Seq       spanner.NullInt64
	Committed spanner.NullTime
	Slot      spanner.NullInt64
	Time      spanner.NullTime
	Token     spanner.NullInt64
	Kind      []byte
	Owner     []byte
	Data      []byte
	Purged    spanner.NullBool
}

func (e *event) public() runstore.Event {
	return runstore.Event{
		Seq: runstore.Seq(e.Seq.Int64), Kind: string(e.Kind), Data: e.Data, Time: timeOf(e.Time), Token: runstore.Token(e.Token.Int64),
		Owner: runstore.Owner(e.Owner),
	}
}

// ReadJournal implements adapter.Core.
func (s *engine) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return s.readJournal(ctx, spanner.StrongRead(), id, from, limit)
}

// ReadJournalStale implements runstore.StaleReader. The nearest replica answers if its lag is
// within the bound.
func (s *Store) ReadJournalStale(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int, bound time.Duration) ([]runstore.Event, error) {
	invalid := cmp.Or(runstore.CheckRead(id, from, limit), checkBound(bound))
	return adapter.Do(ctx, s.Store, "read journal", id, invalid, func(ctx context.Context) ([]runstore.Event, error) {
		return s.engine.readJournal(ctx, staleness(bound), id, from, limit)
	})
}

// maxStaleness (1 h) is how long Spanner keeps overwritten data, unless the database is configured
// otherwise: https://cloud.google.com/spanner/docs/pitr.
const maxStaleness = time.Hour

func checkBound(bound time.Duration) error {
	if bound < 0 || bound >= maxStaleness {
		return adapter.Invalid("bound", "%v is out of range, the limits are 0 and less than %v", bound, maxStaleness)
	}
	return nil
}

func staleness(bound time.Duration) spanner.TimestampBound {
	if bound == 0 {
		return spanner.StrongRead()
	}
	return spanner.MaxStaleness(bound)
}

func (s *engine) readJournal(ctx context.Context, at spanner.TimestampBound, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	k, exists, p := keyOf(id), false, adapter.Page{}
	// The journal is dense, so the keys of the page are known in advance.
	first, end := max(int64(from), 1), int64(math.MaxInt64)
	if first < end-int64(limit) {
		end = first + int64(limit)
	}
	rows := spanner.KeySets(
		spanner.Key{k.hash, k.run, 0},
		spanner.KeyRange{Start: spanner.Key{k.hash, k.run, first}, End: spanner.Key{k.hash, k.run, end}, Kind: spanner.ClosedOpen})
	begin := func() { events, exists, p = nil, false, adapter.NewPage(limit) }
	err = s.rows(ctx, at, byKey("Events", rows, eventColumns, s.read("journal", limit+1)), begin, func(row *spanner.Row) (bool, error) {
		var e event
		if err := row.ToStructLenient(&e); err != nil {
			return false, err
		}
		if !exists { // the marker row comes first
			exists = e.Seq.Int64 == 0
			return exists, nil
		}
		events = append(events, e.public())
		return !p.Add(len(e.Data)), nil
	})
	if err == nil && !exists {
		err = runstore.ErrNotFound
	}
	return events, err
}

var (
	eventColumns = []string{"Seq", "Committed", "Slot", "Time", "Token", "Kind", "Owner", "Data"}
	valueColumns = []string{"Key", "Version", "CreatedSeq", "CreatedTime", "CreatedToken", "UpdatedSeq", "UpdatedTime", "UpdatedToken", "Value"}
)

// read returns the options of a read by key.
func (s *engine) read(tag string, limit int) *spanner.ReadOptions {
	return &spanner.ReadOptions{Limit: limit, Priority: s.opts.Priority, RequestTag: "tapestore-" + tag}
}

// ReadRecords implements adapter.Core.
func (s *engine) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	k, exists, p := keyOf(id), false, adapter.Page{}
	limit := q.Limit
	sets := []spanner.KeySet{spanner.Key{k.hash, k.run, []byte{}}}
	for _, key := range q.Keys {
		sets = append(sets, spanner.Key{k.hash, k.run, stored(key)})
	}
	if len(q.Keys) == 0 {
		limit++
		sets = append(sets, withPrefix(k, q.Prefix, q.After))
	}
	read := byKey("Records", spanner.KeySets(sets...), valueColumns, s.read("records", limit))
	begin := func() { records, exists, p = nil, false, adapter.NewPage(q.Limit) }
	err = s.rows(ctx, spanner.StrongRead(), read, begin, func(row *spanner.Row) (bool, error) {
		var r record
		if err := row.ToStructLenient(&r); err != nil {
			return false, err
		}
		if !exists { // the marker row comes first
			exists = len(r.Key) == 0
			return exists, nil
		}
		records = append(records, r.public())
		return !p.Add(len(r.Value)) || len(q.Keys) > 0, nil
	})
	if err == nil && !exists {
		err = runstore.ErrNotFound
	}
	return records, err
}

// withPrefix returns the keys of records that begin with prefix and are greater than after.
func withPrefix(k runKey, prefix, after runstore.RecordKey) spanner.KeySet {
	set := spanner.KeyRange{Start: spanner.Key{k.hash, k.run, stored(max(prefix, after))}, End: spanner.Key{k.hash, k.run}, Kind: spanner.ClosedClosed}
	if after >= prefix {
		set.Kind = spanner.OpenClosed // also excludes the marker row, whose key is empty
	}
	if end := adapter.PrefixEnd(prefix); end != nil {
		set.End = append(set.End, end)
		if set.Kind = spanner.ClosedOpen; after >= prefix {
			set.Kind = spanner.OpenOpen
		}
	}
	return set
}
