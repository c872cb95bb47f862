package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// templates tracks the template databases of a server, by the caller's key.
type templates struct {
	mu   sync.Mutex
	made map[string]*template
	// patience is how long the sessions of prepare may take to end; 1 min by default. A test with one that
	// does not end sets less.
	patience time.Duration
}

type template struct {
	done chan struct{} // closed when the template is complete or has failed
	name string
	err  error
}

// Template returns the name of a template database for NewDatabase, and creates the template if
// this server has none with the key: prepare fills an empty database, typically with a schema, and
// closes its connections. Callers with the same key share one template. Callers that arrive while
// it is being created wait for it, and share a failure. After a failure the next caller tries
// again.
func (s *Server) Template(ctx context.Context, key string, prepare func(ctx context.Context, url string) error) (string, error) {
	for {
		s.templates.mu.Lock()
		t := s.templates.made[key]
		if t == nil {
			t = &template{done: make(chan struct{})}
			if s.templates.made == nil {
				s.templates.made = map[string]*template{}
			}
			s.templates.made[key] = t
			s.templates.mu.Unlock()
			s.makeTemplate(ctx, key, t, prepare)
		} else {
			s.templates.mu.Unlock()
		}
		select {
		case <-t.done:
		case <-ctx.Done():
			return "", fmt.Errorf("emulators: postgres: template %q: %w", key, ctx.Err())
		}
		// The creating call was cancelled; this call tries again.
		if gaveUp := errors.Is(t.err, context.Canceled) || errors.Is(t.err, context.DeadlineExceeded); gaveUp && ctx.Err() == nil {
			continue
		}
		if t.err != nil {
			return "", fmt.Errorf("emulators: postgres: template %q: %w", key, t.err)
		}
		return t.name, nil
	}
}

// makeTemplate creates the template and then closes t.done, on which other callers wait.
func (s *Server) makeTemplate(ctx context.Context, key string, t *template, prepare func(ctx context.Context, url string) error) {
	t.err = errors.New("prepare did not return: it ended its test, or panicked")
	defer func() {
		if t.err != nil {
			s.templates.mu.Lock()
			delete(s.templates.made, key)
			s.templates.mu.Unlock()
			if t.name != "" {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.StopBound)
				defer cancel()
				_ = s.dropDatabase(ctx, t.name) // Close tries again
			}
		}
		close(t.done)
	}()
	t.name, t.err = s.prepareTemplate(ctx, prepare)
}

func (s *Server) prepareTemplate(ctx context.Context, prepare func(ctx context.Context, url string) error) (string, error) {
	name, err := s.createDatabase(ctx, "")
	if err != nil {
		return name, err
	}
	if err := prepare(ctx, s.databaseURL(name)); err != nil {
		return name, err
	}
	return name, s.admin(ctx, func(c *pgx.Conn) error {
		// A template can be copied only while it has no connections.
		if _, err := c.Exec(ctx, "ALTER DATABASE "+quote(name)+" WITH ALLOW_CONNECTIONS false"); err != nil {
			return err
		}
		open, err := awaitNoSessions(ctx, c, name, cmp.Or(s.templates.patience, time.Minute))
		if err == nil && open > 0 {
			err = fmt.Errorf("prepare left %d connections open", open)
		}
		return err
	})
}
