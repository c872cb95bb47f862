package alloydb_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
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

// TestConformancePassword runs with the database's own login what writes under fences
// and reads whole runs. Who logs in how makes no difference behind that, so a quick run
// takes a case of each and leaves the rest.
func TestConformancePassword(t *testing.T) {
	h := engines.AlloyDB(standIn(t), func(o *alloydb.Options) {
		o.Password, o.MaxConns = "secret", 4 // any: the server trusts who comes from this machine
	})
	whole := h.New
	h.New = func(t conformance.T) conformance.Instance {
		i := whole(t)
		i.URL = "" // processes are for Run, above
		return i
	}
	pattern := "^(I2|I4|I5)/"
	if !effort.Full() {
		t.Log("reduced: 3 cases instead of all of I2, I4 and I5")
		pattern = "^(I2/token-grows-by-one-per-grant|I4/a-commit-over-several-runs-applies-whole|I5/seq-is-dense-under-many-writers)$"
	}
	report := conformance.Execute(t.Context(), h, regexp.MustCompile(pattern))
	for _, g := range report.Guarantees {
		for _, c := range g.Cases {
			if c.Status == conformance.Failed {
				t.Errorf("%s/%s: %s", g.ID, c.Name, c.Reason)
			}
		}
	}
	if want := effort.Choose(3, 20); report.Engine != "alloydb" || report.Summary.Passed < want {
		t.Errorf("report of %q: %+v, want at least %d cases of alloydb that passed", report.Engine, report.Summary, want)
	}
}
