package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
)

func TestMain(m *testing.M) {
	conformance.RunChild() // before a server is started that the child does not need
	code := m.Run()
	if err := emulators.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// server returns the server that the tests of this package share.
func server(t testing.TB) *emulators.PostgresServer {
	t.Helper()
	s, err := emulators.Shared(context.Background())
	emulators.Require(t, err)
	return s
}

func TestConformance(t *testing.T) {
	conformance.Run(t, engines.Postgres(server(t), nil))
}

// TestConformanceSimpleProtocol runs the suite as behind a proxy that pools
// transactions: no prepared statements, no session settings, no LISTEN.
func TestConformanceSimpleProtocol(t *testing.T) {
	conformance.Run(t, engines.Postgres(server(t), url.Values{
		"pooled": {"yes"}, "default_query_exec_mode": {"simple_protocol"},
	}))
}
