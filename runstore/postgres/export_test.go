package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// Waiting returns how many writes of a run queue behind the one in flight.
func Waiting(s *Store, id runstore.RunID) int {
	s.engine.queues.mu.Lock()
	defer s.engine.queues.mu.Unlock()
	if at := s.engine.queues.all[id]; at != nil {
		return len(at.waiting)
	}
	return 0
}

// WaitsForConn reports whether a write of a run is in flight and has no connection yet.
func WaitsForConn(s *Store, id runstore.RunID) bool {
	s.engine.queues.mu.Lock()
	defer s.engine.queues.mu.Unlock()
	at := s.engine.queues.all[id]
	return at != nil && !at.connected.Load()
}

// Migrations returns the number of migrations of the schema.
func Migrations() int { return len(migrations) }

// FunctionsSum returns a digest of the schema's functions without comments and empty lines.
func FunctionsSum() string {
	var code []string
	for line := range strings.Lines(functions) {
		line, _, _ = strings.Cut(line, "--")
		code = append(code, strings.Fields(line)...)
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(code, " "))))[:16]
}

// MigrateTo brings the schema that conn leads to up to a version, without functions if it is not the last.
func MigrateTo(ctx context.Context, conn *pgx.Conn, version int) error {
	opts, err := (*Options)(nil).withDefaults()
	if err != nil {
		return err
	}
	e := &engine{opts: opts, clock: localclock.New(opts.Clock)}
	return e.migrateTo(ctx, conn, version)
}

// Reads returns the statements that read tables that grow, by name, for pages of a limit.
func Reads(limit int) map[string]string {
	all := map[string]string{
		"run": sqlRunRead, "journal": sqlJournalPage, "records": sqlRecordsPage, "keys": sqlRecordsByKey,
		"feed": sqlFeedPage, "newest": sqlFeedPageNewest, "strangers": sqlFeedStrangers, "plans": sqlFeedPlans, "lag": sqlFeedLag,
		"last position": sqlFeedLastPosition,
	}
	for index, both := range scans {
		all["index "+string(index)] = both[0]
		all["index "+string(index)+", newest first"] = both[1]
	}
	for name, sql := range all {
		all[name] = strings.ReplaceAll(sql, "{limit}", strconv.Itoa(limit))
	}
	return all
}

// Writes returns the statements of commits and of a heartbeat.
func Writes() map[string]string {
	all := map[string]string{
		"renew": sqlLeaseRenew, "acquire": sqlLeaseAcquire, "release": sqlLeaseRelease, "move": limited(sqlRunnableMove, maxMoves),
	}
	for f, s := range commitStatements {
		all[fmt.Sprintf("commit %+v", f)] = s().sql
	}
	return all
}

// StatementFaults returns what is wrong with the files of the folder sql.
func StatementFaults() []string {
	for _, s := range commitStatements {
		s()
	}
	return sqlFiles.Faults()
}

// StatementOfAnEvent returns the statement of a commit of events, without an id.
func StatementOfAnEvent() string { return commitStatements[form{alone: true, oneEvent: true}]().sql }

// StatementOf returns the statement of a commit and its arguments.
func StatementOf(s *Store, b runstore.Batch) (sql string, args []any) {
	r := commitRequest(b)
	r.nonce = newNonce()
	r.epoch, _ = s.engine.positions.current()
	if !r.direct() {
		return sqlWrite, r.writeArgs(0)
	}
	st := &statement{requests: []*request{r}}
	_, base := s.engine.positions.current()
	st.commit(base)
	return st.sql, st.args
}

// Timed reports whether a handle expects that the time matters to a batch.
func Timed(s *Store, b runstore.Batch) bool { return s.engine.timed.has(commitRequest(b)) }

// MultiStatements returns the statements for several runs.
func MultiStatements() (all []string) {
	for f, s := range commitStatements {
		if f.multi {
			all = append(all, s().sql)
		}
	}
	return all
}

// ScanOf returns the statement of a scan and its arguments.
func ScanOf(q runstore.IndexQuery) (sql string, args []any, err error) {
	after, err := decodeCursor(q)
	if err != nil {
		return "", nil, err
	}
	sql, args = scanOf(q, after)
	return sql, args, nil
}

// RecordsOf returns the statement for a page of records and its arguments.
var RecordsOf = recordsPage

// ListenPause returns the pause before the next connection for notifications.
var ListenPause = listenPause

// Settings returns the session settings of a handle's connections.
func Settings(s *Store) map[string]string { return s.engine.settings() }

// FillSlots takes all slots of a handle's coalescer, so that appends wait. It returns a function
// that releases one slot: the appends that wait are then sent together.
func FillSlots(s *Store) (leave func()) {
	s.engine.coalescer.mu.Lock()
	defer s.engine.coalescer.mu.Unlock()
	s.engine.coalescer.freeSlots -= maxInFlight
	return s.engine.coalescer.releaseSlot
}

// Coalescer returns how many runs' appends wait for a slot, and how many slots are free.
func Coalescer(s *Store) (waiting, free int) {
	s.engine.coalescer.mu.Lock()
	defer s.engine.coalescer.mu.Unlock()
	return len(s.engine.coalescer.waiting), s.engine.coalescer.freeSlots
}

// MaxInFlight is how many round trips of appends may be in flight before others share one.
const MaxInFlight = maxInFlight

// Unreplicated reports whether a notice says that a commit may be on no standby.
var Unreplicated = unreplicated

// TakeForForeign makes the other handles of the store treat this one's writes as those of another
// process.
func TakeForForeign(s *Store) {
	n := s.engine.notifier
	n.waiters, n.sender = wakeup.Of(s), "another"
	*s = *newStore(s.engine)
}

// MaxNames is how many runs a notification names.
const MaxNames = maxNames

// Committed notifies of a write to each run, in one notification.
func Committed(s *Store, ids ...runstore.RunID) {
	requests := make([]*request, len(ids))
	for i, id := range ids {
		requests[i] = &request{run: id}
	}
	s.engine.notifier.committed(requests...)
}

// Notify delivers to a handle the notification of another handle's write to a run.
func Notify(s, sender *Store, id runstore.RunID) {
	s.engine.notifier.wakeRuns(sender.engine.notifier.sender + " " + runHash(id))
}

// SQLState returns the server's code of an error, or "".
func SQLState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// CloseConnections closes the connections of a handle. The next operation makes a new one.
func CloseConnections(s *Store) { s.engine.pool.Reset() }
