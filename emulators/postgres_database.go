package emulators

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Database is a database that NewDatabase made.
type Database struct {
	Name string
	URL  string

	server *PostgresServer
}

// databases is what a server was asked to make.
type databases struct {
	mu   sync.Mutex
	made map[string]bool
	// copying admits one copy of a template at a time.
	copying map[string]chan struct{}
}

// NewDatabase makes a database with a name of its own: a copy of the template, as
// Template names it, or an empty one. The caller drops it, or leaves that to Close.
func (s *PostgresServer) NewDatabase(ctx context.Context, template string) (Database, error) {
	name, err := s.createDatabase(ctx, template)
	if err != nil {
		return Database{}, fmt.Errorf("emulators: postgres: new database: %w", err)
	}
	return Database{Name: name, URL: s.databaseURL(name), server: s}, nil
}

// Drop removes the database and ends the sessions in it. Dropping one that is gone
// does nothing.
func (d Database) Drop(ctx context.Context) error {
	if err := d.server.dropDatabase(ctx, d.Name); err != nil {
		return fmt.Errorf("emulators: postgres: drop database: %w", err)
	}
	return nil
}

// createDatabase makes a database under a new name.
func (s *PostgresServer) createDatabase(ctx context.Context, template string) (string, error) {
	if template == "" {
		template = "template0" // the one that nobody can have changed or be connected to
	}
	leave, err := s.databases.lockTemplate(ctx, template)
	if err != nil {
		return "", err
	}
	defer leave()
	name := "tapestore_" + strings.ToLower(rand.Text()[:16])
	statement := "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(template) + s.copyStrategy()
	s.databases.add(name) // also when the reply gets lost
	return name, s.admin(ctx, func(c *pgx.Conn) error {
		for {
			_, err := c.Exec(ctx, statement)
			if code(err) != "55006" { // object_in_use: somebody is connected to the template
				return err
			}
			select {
			case <-ctx.Done():
				return errors.Join(ctx.Err(), err)
			case <-time.After(10 * time.Millisecond): // the server has waited for longer
			}
		}
	})
}

// copyStrategy is what CREATE DATABASE of a private server ends with. Copying files takes
// half of the CPU time of copying through the log, and takes over the file that spares the
// first session reading the catalog. It makes a checkpoint, which a server that is not ours
// may have to pay for.
func (s *PostgresServer) copyStrategy() string {
	major, _, _ := strings.Cut(s.engine.Version, ".")
	if n, err := strconv.Atoi(major); s.local == nil || err != nil || n < 15 { // older ones copy files anyway
		return ""
	}
	return " STRATEGY file_copy"
}

func (s *PostgresServer) dropDatabase(ctx context.Context, name string) error {
	err := s.admin(ctx, func(c *pgx.Conn) error {
		// The server would look again after 100 ms whether a session has gone; the
		// last ones of a pool that was just closed go within one.
		if err := endSessions(ctx, c, name); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
		return err
	})
	if err == nil {
		s.databases.forget(name)
	}
	return err
}

// dropAll removes what is left of the databases that were made here.
func (s *PostgresServer) dropAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var failed []error
	for _, name := range s.databases.list() {
		failed = append(failed, s.dropDatabase(ctx, name))
	}
	return errors.Join(failed...)
}

// enter waits until nobody else copies the template.
func (d *databases) lockTemplate(ctx context.Context, template string) (leave func(), err error) {
	d.mu.Lock()
	if d.copying == nil {
		d.copying = map[string]chan struct{}{}
	}
	turn := d.copying[template]
	if turn == nil {
		turn = make(chan struct{}, 1)
		d.copying[template] = turn
	}
	d.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *databases) add(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made == nil {
		d.made = map[string]bool{}
	}
	d.made[name] = true
}

func (d *databases) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.made, name)
}

func (d *databases) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for name := range d.made {
		names = append(names, name)
	}
	return names
}

// quote makes a name safe to stand in a statement.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// code is the SQLSTATE of an error of the server, or "".
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
