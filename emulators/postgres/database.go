package postgres

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

	server *Server
}

// databases tracks the databases that a server was asked to create.
type databases struct {
	mu   sync.Mutex
	made map[string]bool
	// copying has a semaphore for each template, which admits one copy at a time.
	copying map[string]chan struct{}
}

// NewDatabase creates a database with a unique name: a copy of the template, as named by Template,
// or an empty one. The caller drops it, or leaves that to Close.
func (s *Server) NewDatabase(ctx context.Context, template string) (Database, error) {
	name, err := s.createDatabase(ctx, template)
	if err != nil {
		return Database{}, fmt.Errorf("emulators: postgres: new database: %w", err)
	}
	return Database{Name: name, URL: s.databaseURL(name), server: s}, nil
}

// Drop removes the database and ends the sessions in it. Dropping a database that is gone does
// nothing.
func (d Database) Drop(ctx context.Context) error {
	if err := d.server.dropDatabase(ctx, d.Name); err != nil {
		return fmt.Errorf("emulators: postgres: drop database: %w", err)
	}
	return nil
}

// createDatabase creates a database under a new name.
func (s *Server) createDatabase(ctx context.Context, template string) (string, error) {
	if template == "" {
		template = "template0" // always unchanged and without connections
	}
	leave, err := s.databases.lockTemplate(ctx, template)
	if err != nil {
		return "", err
	}
	defer leave()
	name := "tapestore_" + strings.ToLower(rand.Text()[:16])
	statement := "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(template) + s.copyStrategy()
	s.databases.add(name) // before the statement, in case its reply is lost
	return name, s.admin(ctx, func(c *pgx.Conn) error {
		for {
			_, err := c.Exec(ctx, statement)
			if code(err) != "55006" { // object_in_use: the template has a connection
				return err
			}
			select {
			case <-ctx.Done():
				return errors.Join(ctx.Err(), err)
			case <-time.After(10 * time.Millisecond): // the server has waited longer before it failed
			}
		}
	})
}

// copyStrategy returns the end of the CREATE DATABASE statement. On a private server it is STRATEGY
// file_copy: copying files takes half of the CPU time of copying through the log, and also copies
// the file that spares the first session reading the catalog. It forces a checkpoint, so it is not
// used on a server that this process does not own.
func (s *Server) copyStrategy() string {
	major, _, _ := strings.Cut(s.engine.Version, ".")
	if n, err := strconv.Atoi(major); s.local == nil || err != nil || n < 15 { // older ones copy files anyway
		return ""
	}
	return " STRATEGY file_copy"
}

func (s *Server) dropDatabase(ctx context.Context, name string) error {
	err := s.admin(ctx, func(c *pgx.Conn) error {
		// DROP DATABASE polls every 100 ms for the end of the sessions; the last sessions of
		// a pool that was just closed end within 1 ms.
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

// dropAll drops the databases that were created here and not dropped.
func (s *Server) dropAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var failed []error
	for _, name := range s.databases.list() {
		failed = append(failed, s.dropDatabase(ctx, name))
	}
	return errors.Join(failed...)
}

// lockTemplate blocks until no other call copies the template. The caller must call leave.
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

// quote quotes a name for use in a statement.
func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// code returns the SQLSTATE of an error of the server, or "".
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
