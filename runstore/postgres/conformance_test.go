package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
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

// server returns the server that the tests of this package share.
func server(t testing.TB) *postgresemulator.Server {
	t.Helper()
	s, err := postgresemulator.Shared(context.Background())
	emulators.Require(t, err)
	return s
}

func TestConformance(t *testing.T) {
	conformance.Run(t, engines.Postgres(server(t), nil))
}

// simpleProtocol makes stores as behind a proxy that pools transactions: no prepared
// statements, no session settings, no LISTEN.
func simpleProtocol(t *testing.T) conformance.Harness {
	return engines.Postgres(server(t), url.Values{"pooled": {"yes"}, "default_query_exec_mode": {"simple_protocol"}})
}

// TestConformanceSimpleProtocol runs the whole suite as behind a proxy.
func TestConformanceSimpleProtocol(t *testing.T) {
	if !effort.Full() {
		t.Skip("left to make test-full: the whole suite in the simple protocol; TestSimpleProtocol runs some of it")
	}
	conformance.Run(t, simpleProtocol(t))
}

// TestSimpleProtocol runs the cases of the suite in which the simple protocol and a
// pooling proxy make a difference: values are written into the statement's text, several
// statements are one message with one transaction, and wake-ups are polled.
func TestSimpleProtocol(t *testing.T) {
	if effort.Full() {
		t.Skip("TestConformanceSimpleProtocol runs them")
	}
	conformance.RunCases(t, simpleProtocol(t),
		// Values of every type and byte.
		"I12/payloads-of-any-byte-come-back",
		"I12/run-ids-of-any-byte-stay-apart",
		"I12/record-keys-of-any-byte-stay-apart",
		"I12/owners-and-ids-of-any-byte-come-back",
		"I12/empty-payloads-stay-empty",
		"I12/largest-payloads-come-back-from-every-read",
		"I12/times-are-bounded",
		"I9/a-scan-ends-at-its-bound",
		"I9/runnable-runs-come-in-order-and-in-pages",
		// Every kind of write.
		"I3/zombie-whole-batch-is-refused",
		"I3/zombie-multi-run-commit-is-refused",
		"I3/appends-to-many-runs-at-once-are-fenced-one-by-one",
		"I3/appends-to-many-runs-at-once-lose-to-a-preempt-held-open",
		"I4/a-batch-applies-whole",
		"I4/a-commit-over-several-runs-applies-whole",
		"I2/token-survives-purge-and-re-creation",
		"I2/epoch-lifts-the-feed-above-lost-positions",
		// Several statements in one message, of which one fails or is lost.
		"I4/a-bad-batch-among-good-ones-fails-alone",
		"I11/a-refused-batch-leaves-nothing-under-load",
		"I11/a-context-that-ends-in-flight-is-obeyed",
		"I8/a-lost-reply-is-resolved-by-the-store",
		"I8/appends-to-many-runs-over-a-bad-network-are-applied-once",
		"I8/a-repeat-over-several-runs-gets-the-first-results",
		// No LISTEN.
		"I10/a-tailing-reader-misses-nothing",
		"I10/a-commit-wakes-who-waits",
		"I10/wake-ups-are-coalesced",
		"I10/wake-ups-end-with-their-context",
	)
}
