package postgres

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

type nullTime = pgtype.Timestamptz

// query runs one read on a connection.
type query struct {
	ctx    context.Context
	engine *engine
	conn   *pgx.Conn
}

// each scans every row into targets and calls f.
func (q *query) each(sql string, args, targets []any, f func() error) error {
	rows, err := q.conn.Query(q.ctx, q.engine.sql(sql), args...)
	if err != nil {
		return err
	}
	return scanEach(rows, targets, f)
}

// scanEach scans every row into targets, calls f and closes rows.
func scanEach(rows pgx.Rows, targets []any, f func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// read runs f on a connection and retries it while the server is unreachable.
func (e *engine) read(ctx context.Context, f func(q *query) error) error {
	return e.retry(ctx, func() error { return e.readOnce(ctx, f) }, nil)
}

// readOnce runs f on a connection, without retries.
func (e *engine) readOnce(ctx context.Context, f func(q *query) error) error {
	conn, done, err := e.connect(ctx, forRead)
	if err != nil {
		return err
	}
	defer done()
	return f(&query{ctx, e, conn.Conn()})
}

// GetRun implements adapter.Core.
func (e *engine) GetRun(ctx context.Context, id runstore.RunID) (run runstore.Run, err error) {
	err = e.read(ctx, func(q *query) error {
		var head nullHead
		var summary nullRecord
		found := false
		err := q.each(sqlRunRead, []any{[]byte(id)}, append(head.targets(), summary.targets()...), func() error {
			run, found = head.head(id).Run, true
			run.Summary = summary.record(runstore.SummaryKey)
			return nil
		})
		if err == nil && !found {
			return runstore.ErrNotFound
		}
		return err
	})
	return run, err
}

// ReadTerms implements runstore.TermReader.
func (e *engine) ReadTerms(ctx context.Context, id runstore.RunID) (terms []runstore.Term, err error) {
	err = e.read(ctx, func(q *query) error {
		terms, err = q.terms(id)
		return err
	})
	return terms, err
}

func (q *query) terms(id runstore.RunID) (terms []runstore.Term, err error) {
	var token pgtype.Int8
	var granted, expires, ended pgtype.Timestamptz
	var how pgtype.Int2
	var owner, reactor, reason []byte
	found := false
	err = q.each(sqlTermsRead, []any{[]byte(id)}, []any{&token, &granted, &expires, &ended, &how, &owner, &reactor, &reason}, func() error {
		if found = true; how.Valid {
			terms = append(terms, runstore.Term{
				Token: runstore.Token(token.Int64), Owner: runstore.Owner(owner), Reactor: runstore.Reactor(reactor),
				GrantedAt: timeOf(granted), ExpiresAt: timeOf(expires), EndedAt: timeOf(ended),
				End: runstore.GrantEnd(how.Int16), Reason: string(reason),
			})
		}
		return nil
	})
	if err == nil && !found {
		err = runstore.ErrNotFound
	}
	return terms, err
}

// limited writes the limit into a statement. The value of a parameter is unknown to a generic plan,
// which would then be made for a tenth of the table.
func limited(sql string, limit int) string {
	return strings.ReplaceAll(sql, "{limit}", strconv.Itoa(limit))
}

// nullEvent scans an event, or the NULLs of an empty page.
type nullEvent struct {
	seq, position, token pgtype.Int8
	time                 nullTime
	kind, owner          interned
	data                 []byte
}

// interned is a text that is the same in most rows. It is copied only if it differs from that of
// the previous row.
type interned string

// ScanBytes implements pgtype.BytesScanner. NULL becomes the empty text.
func (t *interned) ScanBytes(v []byte) error {
	if string(*t) != string(v) {
		*t = interned(v)
	}
	return nil
}

func (e *nullEvent) targets() []any {
	return []any{&e.seq, &e.position, &e.token, &e.time, &e.kind, &e.owner, &e.data}
}

func (e *nullEvent) event() runstore.Event {
	return runstore.Event{
		Seq: runstore.Seq(e.seq.Int64), Position: runstore.Position(e.position.Int64), Token: runstore.Token(e.token.Int64),
		Time: timeOf(e.time), Kind: string(e.kind), Owner: runstore.Owner(e.owner), Data: e.data,
	}
}

// ReadJournal implements adapter.Core.
func (e *engine) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	err = e.read(ctx, func(q *query) error {
		events, err = q.journal(id, from, limit)
		return err
	})
	return events, err
}

func (q *query) journal(id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	var e nullEvent
	found := false
	args := []any{[]byte(id), int64(from), int64(runstore.MaxPageBytes)}
	err = q.each(limited(sqlJournalPage, limit), args, e.targets(), func() error {
		found = true
		if e.seq.Valid {
			events = append(events, e.event())
		}
		return nil
	})
	if err == nil && !found {
		err = runstore.ErrNotFound
	}
	return events, err
}

// ReadRecords implements adapter.Core.
func (e *engine) ReadRecords(ctx context.Context, id runstore.RunID, rq runstore.RecordQuery) (records []runstore.Record, err error) {
	err = e.read(ctx, func(q *query) error {
		var r nullRecord
		found := false
		records = nil
		sql, args := sqlRecordsByKey, []any{[]byte(id), keyArgs(rq.Keys)}
		if len(rq.Keys) == 0 {
			sql, args = recordsPage(id, rq)
		}
		err := q.each(sql, args, append([]any{&r.key}, r.targets()...), func() error {
			found = true
			if r.version.Valid {
				records = append(records, r.record(runstore.RecordKey(r.key)))
			}
			return nil
		})
		if err == nil && !found {
			return runstore.ErrNotFound
		}
		return err
	})
	return records, err
}

// recordsPage returns the statement and the arguments for a page of the records with a prefix.
func recordsPage(id runstore.RunID, rq runstore.RecordQuery) (sql string, args []any) {
	from, end := adapter.KeyBounds(rq)
	return limited(sqlRecordsPage, rq.Limit), []any{[]byte(id), data(from), end, int64(runstore.MaxPageBytes)}
}

func keyArgs(keys []runstore.RecordKey) [][]byte {
	args := make([][]byte, len(keys))
	for i, key := range keys {
		args[i] = []byte(key)
	}
	return args
}
