package postgres

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestDatabasesFromOneTemplate(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	var made atomic.Int32
	prepare := func(ctx context.Context, url string) error {
		made.Add(1)
		return execute(ctx, url, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)")
	}
	const callers = 8
	databases := make([]Database, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			name, err := s.Template(t.Context(), "one", prepare)
			if err != nil {
				t.Error(err)
				return
			}
			if databases[i], err = s.NewDatabase(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if made.Load() != 1 {
		t.Errorf("the template was made %d times, want once", made.Load())
	}
	names := map[string]bool{}
	for _, d := range databases {
		names[d.Name] = true
		if got := ask[int](t, d.URL, "SELECT n FROM kept"); got != 7 {
			t.Errorf("%s holds %d, want 7", d.Name, got)
		}
		for range 2 { // dropping again does nothing
			if err := d.Drop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if ask[bool](t, s.URL(), "SELECT count(*) > 0 FROM pg_database WHERE datname = $1", d.Name) {
			t.Errorf("%s is still there after Drop", d.Name)
		}
	}
	if len(names) != callers {
		t.Errorf("%d names for %d databases", len(names), callers)
	}
}

func TestDropEndsSessions(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, sharedServer(t), "")
	c, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t.Context(), c)
	if err := d.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); err == nil {
		t.Error("a session in a dropped database still answers")
	}
}

func TestTemplateThatFails(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.templates.patience = 5 * time.Second
	broken := errors.New("broken on purpose")
	var leaked *pgx.Conn // or the collector would close it
	t.Cleanup(func() {
		if leaked != nil {
			_ = leaked.Close(context.Background()) // the server may be gone
		}
	})
	for _, c := range []struct {
		name    string
		prepare func(ctx context.Context, url string) error
		want    string
	}{
		{"error", func(context.Context, string) error { return broken }, broken.Error()},
		{"cancelled", func(context.Context, string) error { return context.Canceled }, ""},
		{"connection left open", func(ctx context.Context, url string) error {
			var err error
			leaked, err = pgx.Connect(ctx, url)
			return err
		}, "1 connections open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := s.Template(ctx, t.Name(), func(ctx context.Context, url string) error {
				if c.want == "" {
					cancel() // else another try follows
				}
				return c.prepare(ctx, url)
			})
			cancel()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			// The failure is nobody's but its own.
			if _, err := s.Template(t.Context(), t.Name(), func(context.Context, string) error { return nil }); err != nil {
				t.Errorf("the next try: %v", err)
			}
		})
	}
}

// A test that gives up inside prepare must not leave others waiting for ever.
func TestTemplateWhoseMakerVanishes(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	began, vanish := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = s.Template(t.Context(), t.Name(), func(context.Context, string) error {
			close(began)
			<-vanish
			runtime.Goexit()
			return nil
		})
	})
	<-began
	waited := make(chan error, 1)
	go func() {
		close(vanish)
		_, err := s.Template(t.Context(), t.Name(), func(context.Context, string) error { return nil })
		waited <- err
	}()
	wg.Wait()
	// It came while the first was at it, or after.
	if err := <-waited; err != nil && !strings.Contains(err.Error(), "did not return") {
		t.Errorf("the one who waited got %v", err)
	}
}

func TestTemplateInUse(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	source := newDatabase(t, s, "")
	c, err := pgx.Connect(t.Context(), source.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, patient := make(chan error, 1), make(chan error, 1)
	for ctx, got := range map[context.Context]chan error{ctx: cancelled, t.Context(): patient} {
		go func() {
			_, err := s.NewDatabase(ctx, source.Name)
			got <- err
		}()
	}
	// The server itself waits for seconds before it refuses.
	if err := host.Await(hosttest.Hang, func() (bool, error) {
		return strings.Contains(tail(s.local.log(), 0), "is being accessed by other users"), nil
	}); err != nil {
		t.Fatal(err)
	}
	cancel() // be it at it, or waiting for its turn
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("a copy of a template in use: %v, want that it was cancelled", err)
	}
	if err := closeConn(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := <-patient; err != nil {
		t.Errorf("a copy of a template that was in use for a while: %v", err)
	}
}
