package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
)

// Waiting returns how many writes of a run wait for the one that is under way.
func Waiting(s *Store, id runstore.RunID) int {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	if at := s.lanes.all[id]; at != nil {
		return len(at.waiting)
	}
	return 0
}

// Migrations returns how many steps the schema has.
func Migrations() int { return len(migrations()) }

// MigrateTo brings the schema that a connection leads to up to a version.
func MigrateTo(ctx context.Context, conn *pgx.Conn, version int) error {
	opts, err := (*Options)(nil).withDefaults()
	if err != nil {
		return err
	}
	s := &Store{opts: opts}
	for range version { // a step that was made already is left out
		if err := s.step(ctx, conn, migrations(), version); err != nil {
			return err
		}
	}
	return nil
}
