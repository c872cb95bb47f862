package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// ReadJournalOn is ReadJournal over a connection of the caller's own, which may lead
// to a standby: nothing is written, and nothing made sure of. How old the state is
// that it reads is the caller's to judge. Event.Position is always 0, because where
// the feed stands is not to be told by a replica.
//
// Errors: those of ReadJournal. It tries once.
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

// ScanIndexOn tells what a standby knows of an index, over a connection of the caller's
// own. See ReadJournalOn.
//
// Errors: those of ScanIndex. It tries once.
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

// unread classifies the error of a read that is not tried again.
func readOnceError(ctx context.Context, err error) error {
	if err == nil || outcome.Definite(err) {
		return err
	}
	return outcome.Unavailable(outcome.Cause(ctx, err))
}
