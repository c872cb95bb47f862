package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
)

// An acquire without guards and writes, and a release without them, are one SQL statement each. In
// the uncommon cases (the run does not exist, the grant was made or ended before, the nonce was
// voided, another writer was faster) the statement changes nothing and calls tapestore.write, in
// the same round trip. Its invariants:
//
//  1. A contender that sees a live lease of another holder does not lock the row. It is refused on
//     what it sees.
//  2. Whether the lease is free is a condition on the row under its lock, as the fence of a release
//     is. A sub-select takes the lock before the statement reads the clock from which the new lease
//     counts.
//  3. The former grants are read in the snapshot, which is older than the lock. So the token of the
//     locked row must equal the token of the snapshot: then no grant was made in between. Its expiry
//     and its state must be equal, too: then the term of the former grant is that of the snapshot.
//  4. The epoch is read in the snapshot too. A raise of the epoch locks the table, and the
//     statement locks the table before it takes its snapshot, so no raise happens in between.
//
// The statements are sql/lease_acquire.sql and sql/lease_release.sql.

// acquire sets the dedicated statement for an acquire.
func (st *statement) acquire() {
	r := st.requests[0]
	l := r.acquire.LeaseSpec
	st.sql, st.read = sqlLeaseAcquire, st.readAcquired
	st.args = []any{
		[]byte(r.run), r.nonce, []byte(l.Grant), data([]byte(l.Owner)), data([]byte(l.Reactor)), l.TTL.Microseconds(), l.Strict, l.MaxStall.Microseconds(),
	}
}

// readAcquired reads the result of an acquire.
func (st *statement) readAcquired(rows pgx.Rows, a *writeResult) error {
	var status pgtype.Int2
	var now pgtype.Timestamptz
	var head nullHead
	var epoch pgtype.Int8
	var former [][]byte
	if err := rows.Scan(append(append([]any{&status, &now}, head.targets()...), &epoch, &former)...); err != nil {
		return err
	}
	*a = writeResult{status: writeStatus(status.Int16), now: timeOf(now), last: runstore.Seq(head.seq.Int64), head: head.head(st.requests[0].run)}
	a.head.Epoch = runstore.Epoch(epoch.Int64)
	for _, one := range former {
		a.head.Former = append(a.head.Former, one...)
	}
	return nil
}

// release sets the dedicated statement for a release.
func (st *statement) release() {
	r := st.requests[0]
	st.sql, st.args, st.read = sqlLeaseRelease, append(fenceArgs(r.write.fence), r.nonce), st.readReleased
}

// readReleased reads the result of a release: its own, or that of tapestore.write.
func (st *statement) readReleased(rows pgx.Rows, a *writeResult) error {
	var now pgtype.Timestamptz
	var last pgtype.Int8
	var written []byte
	if err := rows.Scan(&now, &last, &written); err != nil || written != nil {
		return errors.Join(err, a.fromJSON(written, st.requests[0].run))
	}
	*a = writeResult{status: statusApplied, now: timeOf(now), last: runstore.Seq(last.Int64)}
	return nil
}
