package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// ReadJournalOn is ReadJournal over the caller's connection, which may lead to a standby: it writes
// nothing and checks nothing about the server. The caller judges how old the state is that it
// reads. Event.Position is always 0, because a replica cannot tell how far the feed is.
//
// Errors: those of ReadJournal. It does not retry.
func (s *Store) ReadJournalOn(ctx context.Context, conn *pgx.Conn, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return adapter.Do(ctx, s.Store, "read journal", id, runstore.CheckRead(id, from, limit), func(ctx context.Context) ([]runstore.Event, error) {
		events, err := (&query{ctx, s.engine, conn}).journal(id, from, limit)
		for i := range events {
			events[i].Position = 0
		}
		return events, outcome.NotApplied(ctx, err)
	})
}

// ScanIndexOn scans an index as a standby has it, over the caller's connection. See ReadJournalOn.
//
// Errors: those of ScanIndex. It does not retry.
func (s *Store) ScanIndexOn(ctx context.Context, conn *pgx.Conn, q runstore.IndexQuery) ([]runstore.Candidate, error) {
	return adapter.Do(ctx, s.Store, "scan index", "", q.Check(), func(ctx context.Context) ([]runstore.Candidate, error) {
		after, err := decodeCursor(q)
		if err != nil {
			return nil, err
		}
		q.Heads = false // a Candidate has none
		entries, _, err := (&query{ctx, s.engine, conn}).scan(q, after)
		return runstore.ToCandidates(entries), outcome.NotApplied(ctx, err)
	})
}
