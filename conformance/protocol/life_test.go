package protocol_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/emulators"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := postgresemulator.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// harnesses makes the stores of each engine.
var harnesses = map[string]func(t *testing.T) conformance.Harness{
	"memory": func(*testing.T) conformance.Harness { return embedded.Memory() },
	"sqlite": func(*testing.T) conformance.Harness { return embedded.SQLite(conformance.T.TempDir, sqlite.Options{}) },
	"postgres": func(t *testing.T) conformance.Harness {
		server, err := postgresemulator.Shared(context.Background())
		emulators.Require(t, err)
		return engines.Postgres(server, nil)
	},
	"alloydb": func(t *testing.T) conformance.Harness {
		server, err := postgresemulator.Shared(context.Background())
		emulators.Require(t, err)
		own, err := alloydbemulator.Start(t.Context(), &alloydbemulator.Options{Postgres: server})
		closing(t, own, err)
		return engines.AlloyDB(own, nil)
	},
	"bigtable": func(t *testing.T) conformance.Harness {
		own, err := bigtableemulator.Start(t.Context(), nil)
		closing(t, own, err)
		return engines.Bigtable(own, nil)
	},
	"spanner": func(t *testing.T) conformance.Harness {
		own, err := spanneremulator.Start(t.Context(), nil)
		emulators.Require(t, err)
		closing(t, own, err)
		return engines.Spanner(own, own, nil)
	},
}

// TestLife runs Life on each engine, with grants by connection.
func TestLife(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) { protocol.Life(t, serve(t, store)) })
}

// onEachEngine runs a test on an empty store of each engine.
func onEachEngine(t *testing.T, test func(t *testing.T, store runstore.RunStore)) {
	t.Helper()
	for name, harness := range harnesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := harness(t).New(t).Open(t.Context())
			closing(t, store, err)
			test(t, store)
		})
	}
}

func closing(t *testing.T, c io.Closer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// serve serves a store until the end of the test, and returns a client on one connection.
func serve(t *testing.T, store runstore.RunStore) tapepb.TapeClient {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	server := tapeserver.New(store, &tapeserver.Options{Fence: tape.FenceConnection, Logger: slog.New(slog.DiscardHandler)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return tapepb.NewTapeClient(conn)
}
