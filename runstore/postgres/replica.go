package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
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
			if !isKind(err) {
				err = unavailable(cause(ctx, err))
			}
		}
		return err
	})
	return events, err
}
