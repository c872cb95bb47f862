package spanner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// callersClient makes a client as a program makes its own, with the options first that it is given.
func callersClient(t conformance.T, s *spanneremulator.Server, database string, first ...option.ClientOption) *client.Client {
	t.Helper()
	config := client.ClientConfig{DisableNativeMetrics: true}
	c, err := client.NewClientWithConfig(context.WithoutCancel(t.Context()), database, config, append(first, s.ClientOptions()...)...)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestConformanceOverACallersClient(t *testing.T) {
	s := server(t, fair)
	conformance.RunCases(t, conformance.Harness{Costly: true, Tier: "emulator", New: func(t conformance.T) conformance.Instance {
		database, err := s.NewDatabase(t.Context())
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(func() {
			if err := s.Drop(context.Background(), database); err != nil {
				t.Errorf("%v", err)
			}
		})
		return conformance.Instance{Open: func(ctx context.Context) (runstore.RunStore, error) {
			c := callersClient(t, s, database.String(), spanner.ClientOptions()...)
			return spanner.New(ctx, c, &spanner.Options{Emulator: s.Address()})
		}}
	}},
		"I3/zombie-whole-batch-is-refused",
		"I4/a-commit-over-several-runs-applies-whole",
		"I8/a-repeat-gets-the-first-result",
		"I10/a-tailing-reader-misses-nothing",
		"I11/a-closed-store-answers-nothing-else",
	)
}

func TestNew(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	c := callersClient(t, p.server, p.String(), spanner.ClientOptions()...)
	open := func(c *client.Client, change ...func(*spanner.Options)) (*spanner.Store, error) {
		opts := &spanner.Options{Emulator: p.server.Address(), RetryTimeout: time.Minute}
		for _, f := range change {
			f(opts)
		}
		return spanner.New(t.Context(), c, opts)
	}
	for range 2 { // the client stays open
		s, err := open(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
			t.Errorf("get run: %v, want ErrNotFound", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := open(callersClient(t, p.server, p.String()))
	if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "spanner.ClientOptions") {
		t.Errorf("a client without ClientOptions: %v, want ErrInvalid that names them", err)
	}
	other := func(o *spanner.Options) { o.Project, o.Instance, o.Database = p.Project, p.Instance, "another" }
	if _, err := open(c, other); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "another") {
		t.Errorf("a client of another database than the options name: %v, want ErrInvalid that names it", err)
	}
	admin, err := database.NewDatabaseAdminClient(t.Context(), p.server.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }() // it only read
	name := "projects/" + p.Project + "/instances/" + p.Instance + "/databases/another"
	if _, err := admin.GetDatabase(t.Context(), &databasepb.GetDatabaseRequest{Name: name}); status.Code(err) != codes.NotFound {
		t.Errorf("the database that the options name: %v, want that none was created", err)
	}
	if _, err := open(nil); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("no client: %v, want ErrInvalid", err)
	}
}
