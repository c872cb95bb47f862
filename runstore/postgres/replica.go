package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// ReadJournalOn is ReadJournal over the caller's connection, which may lead to a standby: it writes
// nothing and checks nothing about the server. The caller judges how old the state is that it
// reads. Event.Position is always 0, because a replica cannot tell how far the feed is.
//
// Errors: those of ReadJournal. It does not retry.
func (s *Store) ReadJournalOn(ctx context.Context, conn *pgx.Conn, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	err = s.op(ctx, "read journal", id, runstore.CheckRead(id, from, limit), func() error {
		q := &query{ctx, s, conn}
		events, err = q.journal(id, from, limit)
		for i := range events {
			events[i].Position = 0
		}
		if err != nil {
			events = nil
		}
		return readOnceError(ctx, err)
	})
	return events, err
}

// ScanIndexOn scans an index as a standby has it, over the caller's connection. See ReadJournalOn.
//
// Errors: those of ScanIndex. It does not retry.
func (s *Store) ScanIndexOn(ctx context.Context, conn *pgx.Conn, q runstore.IndexQuery) (found []runstore.Candidate, err error) {
	after, invalid := checkScan(q)
	q.Heads = false // a Candidate has none
	err = s.op(ctx, "scan index", "", invalid, func() error {
		entries, _, err := (&query{ctx, s, conn}).scan(q, after)
		if err == nil {
			found = runstore.ToCandidates(entries)
		}
		return readOnceError(ctx, err)
	})
	return found, err
}

// readOnceError returns the error of a read that is not retried.
func readOnceError(ctx context.Context, err error) error {
	if err == nil || outcome.Definite(err) {
		return err
	}
	return outcome.Unavailable(outcome.Cause(ctx, err))
}
