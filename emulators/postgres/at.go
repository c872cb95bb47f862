package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
)

// At uses a running server that this process does not own, as EMULATORS_POSTGRES_URL does: address
// is postgres://user@host:port/database, with the driver's parameters only. Its tier is
// emulators.TierService. Close drops the databases that NewDatabase and Template made, for which
// the user needs CREATEDB, and leaves everything else as it is.
func At(ctx context.Context, address string) (*Server, error) {
	s, err := useService(ctx, address, &Options{})
	if err != nil {
		return nil, fmt.Errorf("emulators: postgres (%s): %w", emulators.TierService, err)
	}
	return s, nil
}

// KeepDatabase creates an empty database of that name unless it exists, and returns its URL. Close
// does not drop it: it is for data that is used again later, see Options.Dir.
func (s *Server) KeepDatabase(ctx context.Context, name string) (url string, err error) {
	err = s.admin(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CREATE DATABASE "+quote(name))
		if code(err) == "42P04" { // duplicate_database
			return nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("emulators: postgres: database %s: %w", name, err)
	}
	return s.databaseURL(name), nil
}
