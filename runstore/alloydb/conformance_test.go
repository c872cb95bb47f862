package alloydb_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore/alloydb"
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

// standIn returns a stand-in for AlloyDB of the test's own, in front of the PostgreSQL
// server that the tests of this package share.
func standIn(t testing.TB) *emulators.AlloyDBServer {
	t.Helper()
	server, err := emulators.Shared(context.Background())
	emulators.Require(t, err)
	s, err := emulators.AlloyDB(t.Context(), &emulators.AlloyDBOptions{Postgres: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// TestConformance runs the suite with IAM and a read pool beside the primary: all that
// AlloyDB adds is in the way.
func TestConformance(t *testing.T) {
	s := standIn(t)
	conformance.Run(t, engines.AlloyDB(s, func(o *alloydb.Options) {
		o.IAM, o.Password, o.ReadPool, o.MaxConns = true, "", s.ReadPool(), 4
	}))
}

// TestConformancePassword runs it with the database's own login.
func TestConformancePassword(t *testing.T) {
	conformance.Run(t, engines.AlloyDB(standIn(t), func(o *alloydb.Options) {
		o.Password, o.MaxConns = "secret", 4 // any: the server trusts who comes from this machine
	}))
}
