package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
)

// statement is an SQL statement with the requests that it serves.
type statement struct {
	sql      string
	args     []any
	read     func(rows pgx.Rows, a *writeResult) error // reads its one row, or the rows of a commit statement; nil if the statement returns none
	err      error                                     // of this statement, in a batch that failed
	requests []*request
	base     *int64 // of the positions, if the handle adds it
	onConn   func() // if not nil, called once there is a connection

	// For a commit statement: the requests by run, and whether each run's were applied.
	groups  [][]*request
	applied []bool
}

// statements returns the statements for a group. It merges consecutive mergeable appends under one
// fence, and returns separately the contenders: further acquires, which need no statement if the
// result of the first answers them too.
func (e *engine) statements(group []*request) (all []*statement, contenders []*request) {
	var asked bool
	_, base := e.positions.current()
	for i := 0; i < len(group); i++ {
		r := group[i]
		st := &statement{requests: []*request{r}}
		switch {
		case r.direct():
			for r.mergeable() && i+1 < len(group) && group[i+1].mergeable() && group[i+1].fence == r.fence {
				i++
				st.requests = append(st.requests, group[i])
			}
			st.commit(base)
		case r.write != nil:
			if r.acquire != nil {
				if asked {
					contenders = append(contenders, r)
					continue
				}
				asked = true
				st.acquire()
				break
			}
			if r.releases {
				st.release()
				break
			}
			st.sql, st.args, st.read = sqlWrite, r.writeArgs(0), st.readWrite
		default:
			st.sql, st.args, st.read = sqlLeaseRenew, append(fenceArgs(r.fence), r.ttl.Microseconds(), r.nonce), st.readRenewed
		}
		all = append(all, st)
	}
	return all, contenders
}

func fenceArgs(f runstore.Fence) []any {
	return []any{[]byte(f.Run()), int64(f.Token()), []byte(f.Grant()), data([]byte(f.Owner()))}
}

// sendGroup sends the requests of one run in one round trip, which is one transaction, and fills in
// a result or an error for each. What a commit statement did not apply, and contenders whose result is
// not clear, follow in a second one. If one statement fails in a way that may concern it alone,
// sendGroup sends each request by itself.
func (e *engine) sendGroup(ctx context.Context, group []*request) {
	if slices.ContainsFunc(group, (*request).mayEndLease) {
		for _, r := range group { // a second round trip would come after the end of the lease
			r.byFunction = r.byFunction || r.direct()
		}
	}
	for _, r := range e.sendTogether(ctx, group) {
		e.sendGroup(ctx, []*request{r})
	}
}

// sendTogether is sendGroup, except that it returns the group if one of its requests may have caused an error for
// all. A second round trip keeps the connection: it must not wait for one behind the writes of other runs.
func (e *engine) sendTogether(ctx context.Context, group []*request) (spoilt []*request) {
	for _, r := range group { // an attempt before has given its connection back
		r.setConnected(false)
	}
	all, contenders := e.statements(group)
	conn, done, err := e.connect(ctx, purposeOf(group))
	if err != nil {
		for _, r := range group {
			r.result, r.err = writeResult{}, err
		}
		return nil
	}
	defer done()
	for len(group) > 0 {
		for _, r := range group {
			r.sent = e.clock.Read()
		}
		answers, err := e.exchange(ctx, conn.Conn(), all)
		if err != nil && len(group) > 1 && isolatable(err) && ctx.Err() == nil {
			return group
		}
		var rest []*request
		for i, st := range all {
			for _, r := range st.requests {
				switch {
				case err != nil:
					r.err = err
				case st.groups == nil:
					r.result = answers[i]
				case !st.applied[0]:
					r.byFunction = true
					rest = append(rest, r)
				}
			}
		}
		group = append(rest, resolveContenders(all, contenders, err)...)
		all, contenders = e.statements(group)
	}
	return nil
}

// mayEndLease reports whether r may end the lease under which other requests of its group commit: a release, a
// purge, a handoff or a preemption.
func (r *request) mayEndLease() bool {
	return r.order == orderEnd || r.order == orderAcquire && r.acquire == nil
}

// resolveContenders fills in the results of further acquires from the result of the first one, and
// returns those that must be sent themselves. These include a repeat of the current grant, unless
// the first request waited for the row's lock: what the first request only read may be on no
// synchronous standby yet.
func resolveContenders(all []*statement, contenders []*request, err error) (rest []*request) {
	if len(contenders) == 0 {
		return nil
	}
	var first *request
	for _, st := range all {
		if st.requests[0].acquire != nil {
			first = st.requests[0]
		}
	}
	for _, r := range contenders {
		if r.err = err; err != nil {
			continue
		}
		r.result = first.result
		r.result.status = statusRefused
		switch replay, err := first.result.head.Acquire(*r.acquire, first.result.now); {
		case first.result.status == statusNoSuchRun:
			r.result.status = statusNoSuchRun
		case err != nil: // held, or the contender's own grant has ended
		case replay && first.result.status != statusRefused: // the first waited for the row's lock, and its commit for the standbys
			r.result.status = statusAppliedBefore
		default:
			rest = append(rest, r)
		}
	}
	return rest
}

// roundTrip takes a connection and runs statements in one round trip and one transaction.
func (e *engine) roundTrip(ctx context.Context, all []*statement) ([]writeResult, error) {
	conn, done, err := e.connect(ctx, purposeOf(requestsOf(all)))
	if err != nil {
		return nil, err
	}
	defer done()
	return e.exchange(ctx, conn.Conn(), all)
}

func requestsOf(all []*statement) (requests []*request) {
	for _, st := range all {
		requests = append(requests, st.requests...)
	}
	return requests
}

// exchange runs statements in one round trip and one transaction over a connection. Their requests lose the
// result and the error of an attempt before.
func (e *engine) exchange(ctx context.Context, conn *pgx.Conn, all []*statement) ([]writeResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, notSent{err}
	}
	e.boundAgain(conn)
	if err := e.checkBase(all); err != nil {
		return nil, err
	}
	for _, r := range requestsOf(all) {
		r.result, r.err = writeResult{}, nil // those of an earlier attempt
		r.setConnected(true)
	}
	answers := make([]writeResult, len(all))
	err := acknowledged(conn, func() error {
		for _, st := range all {
			if st.onConn != nil {
				st.onConn()
			}
		}
		if len(all) > 1 || e.guarded() {
			return e.sendBatch(ctx, conn, all, answers)
		}
		st := all[0]
		rows, err := conn.Query(ctx, e.sql(st.sql), st.args...)
		if err != nil {
			return err
		}
		err = scanRow(rows, st, &answers[0])
		rows.Close()
		return errors.Join(rows.Err(), err)
	})
	return answers, e.recheck(ctx, conn, err)
}

// sendBatch runs statements in one round trip, after the guard if there is one. They are one
// transaction.
func (e *engine) sendBatch(ctx context.Context, conn *pgx.Conn, all []*statement, answers []writeResult) error {
	var batch pgx.Batch
	guarded := e.guarded()
	if guarded {
		var base *int64
		for _, st := range all {
			if st.base != nil {
				base = st.base
			}
		}
		batch.Queue(e.sql(sqlIncarnationGuard), base)
	}
	for _, st := range all {
		batch.Queue(e.sql(st.sql), st.args...)
	}
	results := conn.SendBatch(ctx, &batch)
	if guarded {
		if _, err := results.Exec(); err != nil {
			return errors.Join(guardError{err}, results.Close())
		}
	}
	for i, st := range all {
		rows, err := results.Query()
		if err == nil {
			err = scanRow(rows, st, &answers[i])
			rows.Close()
		}
		if st.err = err; err != nil {
			return errors.Join(err, results.Close())
		}
	}
	return results.Close() // returns the error of the commit itself
}

// scanRow reads what st returns: a commit statement one row for each run, other statements one row or none.
func scanRow(rows pgx.Rows, st *statement, a *writeResult) error {
	if st.read == nil {
		rows.Close()
		return rows.Err()
	}
	if st.groups == nil && !rows.Next() {
		return cmp.Or(rows.Err(), errNoAnswer)
	}
	return st.read(rows, a)
}
