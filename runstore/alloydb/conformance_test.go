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
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore/alloydb"
)

func TestMain(m *testing.M) {
	conformance.RunChild() // before a server is started that the child does not need
	_, err := postgresemulator.Shared(context.Background())
	emulators.SkipExamples(err)
	code := m.Run()
	if err := postgresemulator.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// standIn returns a stand-in for AlloyDB of the test's own, in front of the PostgreSQL
// server that the tests of this package share.
func standIn(t testing.TB) *alloydbemulator.Server {
	t.Helper()
	server, err := postgresemulator.Shared(context.Background())
	emulators.Require(t, err)
	s, err := alloydbemulator.Start(t.Context(), &alloydbemulator.Options{Postgres: server})
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
// AlloyDB adds is in the way. The statements are those of package postgres, whose own suite
// runs every case, so a quick run takes the cases that meet what AlloyDB adds.
func TestConformance(t *testing.T) {
	s := standIn(t)
	h := engines.AlloyDB(s, func(o *alloydb.Options) {
		o.IAM, o.Password, o.ReadPool, o.MaxConns = true, "", s.ReadPool(), 4
	})
	if effort.Full() {
		conformance.Run(t, h)
		return
	}
	conformance.RunCases(t, h, ownCases...)
	t.Run("the-other-cases", func(t *testing.T) {
		t.Skip("left to make test-full: the cases in which AlloyDB's adapter does what Postgres's does; TestConformance of runstore/postgres runs them")
	})
}

var ownCases = []string{
	// Reads from the read pool.
	"I5/a-stale-journal-is-the-beginning-of-the-journal",
	"I9/stale-candidates-were-true",
	"I12/staleness-is-bounded",
	// Connections that the connector dials, is asked to give up, and loses.
	"I3/a-request-that-arrives-after-the-takeover-is-refused",
	"I3/a-transaction-left-open-by-a-dead-client-keeps-nobody-out",
	"I8/a-cut-connection-is-no-error-the-caller-must-know",
	"I8/a-lost-reply-is-resolved-by-the-store",
	"I8/histories-over-a-bad-network-are-linearizable",
	"I10/a-tailing-reader-misses-nothing-over-a-slow-network",
	"I11/a-black-hole-does-not-outlive-the-context",
	"I11/a-context-may-end-at-any-stage",
	"I11/a-context-that-ends-in-flight-is-obeyed",
	"I11/reads-may-be-given-up-at-any-moment",
	// Notifications have a connection of their own.
	"I10/a-commit-wakes-who-waits",
	"I10/wake-ups-end-with-their-context",
	// Handles are opened and closed with their connector and read pool.
	"I2/token-survives-a-new-handle",
	"I11/a-closed-store-answers-nothing-else",
	"I11/an-ended-context-writes-nothing",
	"I11/closing-amid-commits-leaves-definite-outcomes",
	"I11/handles-come-and-go-unnoticed",
	// Other processes open the store as behind the Auth Proxy.
	"I2/token-survives-closing-every-handle",
	"I4/a-killed-process-leaves-whole-batches-only",
	// A process's clock is handed on to package postgres.
	"I7/wrong-clock-loses-no-lease-of-its-own",
	"I7/wrong-clock-sees-what-is-due",
	"I7/wrong-clock-stamps-nothing",
	"I7/wrong-clock-steals-no-live-lease",
	"I7/wrong-clock-takes-over-what-has-expired",
	// One case of each kind of write, and large messages, through the connector's TLS.
	"I1/one-winner-per-round-of-an-acquire-race",
	"I2/epoch-raises-the-token-and-frees-the-lease",
	"I3/old-fence-of-the-same-owner-is-refused",
	"I4/a-commit-over-several-runs-applies-whole",
	"I4/a-step-cut-anywhere-is-whole-for-the-next-holder-natively",
	"I8/a-repeat-gets-the-first-result",
	"I12/largest-payloads-come-back-from-every-read",
	"I12/payloads-of-any-byte-come-back",
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
