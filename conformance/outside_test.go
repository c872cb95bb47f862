package conformance_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// adapterVariable makes TestOutsideAdapter run the suite as the author of an adapter would.
const adapterVariable = "TAPESTORE_TEST_OUTSIDE_ADAPTER"

// panicky is an adapter with a bug: a call panics while another call is in progress, or every
// commit panics.
type panicky struct {
	*memory.Handle
	always bool
	busy   *atomic.Int32
}

const bug = "index out of range in the adapter"

func (s panicky) enter() (leave func()) {
	if s.busy.Add(1) > 1 || s.always {
		s.busy.Add(-1)
		panic(bug)
	}
	return func() { s.busy.Add(-1) }
}

func (s panicky) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	defer s.enter()()
	return s.Handle.Commit(ctx, b)
}

func (s panicky) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	if !s.always {
		defer s.enter()()
	}
	return s.Handle.AcquireLease(ctx, r)
}

func panickyHarness(always bool) conformance.Harness {
	return conformance.Harness{New: func(conformance.T) conformance.Instance {
		store, busy := memory.New(nil), &atomic.Int32{}
		return conformance.Instance{Open: func(context.Context) (runstore.RunStore, error) {
			return panicky{store.Open(), always, busy}, nil
		}}
	}}
}

// TestOutsideAdapter runs only in the process that TestRunOfAnOutsideAdapter starts.
func TestOutsideAdapter(t *testing.T) {
	if os.Getenv(adapterVariable) != "" {
		conformance.Run(t, panickyHarness(true))
	}
}

// TestRunOfAnOutsideAdapter checks that go test of an adapter lists the cases that do not apply,
// and that a panic fails one case only.
func TestRunOfAnOutsideAdapter(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run=^TestOutsideAdapter$/^(I1|I3|I8)$/^(token-alone-is-no-fence|one-winner-per-round-of-an-acquire-race|a-lost-reply-is-resolved-by-the-store)$")
	cmd.Env = append(os.Environ(), adapterVariable+"=yes")
	bytes, err := cmd.CombinedOutput()
	out := string(bytes)
	if status := cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("got status %d and %v, want 1: a failed test and no crash", status, err)
	}
	for _, want := range []string{
		"--- FAIL: TestOutsideAdapter/I3/token-alone-is-no-fence", "panic: " + bug, "about the case:\n        A caller presents the current token ",
		"--- PASS: TestOutsideAdapter/I1/one-winner-per-round-of-an-acquire-race",
		"\nTestOutsideAdapter: cases of the suite that do not apply to this store: 1\n" +
			"  no network to harm: the harness has no Network: I8/a-lost-reply-is-resolved-by-the-store\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if n := strings.Count(out, "about the case:"); n != 1 || strings.Index(out, "about the case:") < strings.LastIndex(out, "panic: ") {
		t.Errorf("%d Docs, want one, behind the messages of the case that failed:\n%s", n, out)
	}
}

// TestPanicsInGoroutines checks that a panic in a goroutine of a case fails that case and that the
// run continues.
func TestPanicsInGoroutines(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile("^(I1/one-winner-per-round|I4/a-bad-batch|I5/one-winner|I8/concurrent-repeats|I9/every-acknowledged|I11/closing-amid|I12/ttl-is-bounded)")
	found := conformance.Execute(t.Context(), panickyHarness(false), pattern)
	panicked := 0 // usually all but the last
	for _, g := range found.Guarantees {
		for _, c := range g.Cases {
			if strings.Contains(c.Reason, bug) {
				panicked++
			}
			if (c.Doc != "") != (c.Status == conformance.Failed) {
				t.Errorf("%s/%s %s, and has the Doc %q", g.ID, c.Name, c.Status, c.Doc)
			}
		}
	}
	if sum := found.Summary; panicked == 0 || sum.Failed != panicked || sum.Passed == 0 || sum.Passed+sum.Failed != 7 {
		t.Errorf("%d cases met the panic, and the summary is %+v; want some that did, and all 7 reported", panicked, sum)
	}
}
