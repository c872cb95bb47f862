package cuts_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

var update = flag.Bool("update", false, "write the tables of ../README.md anew")

const page = "../README.md"

// The page says what each RPC asks of the store, and what a repeat of it does.
func TestStoreCallsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	want := between(t, got, "writes", writesTable(t))
	want = between(t, want, "reads", readsTable(t))
	if want == got {
		return
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(got, line) {
			t.Errorf("%s lacks the line %q", page, line)
		}
	}
	t.Errorf("the tables of %s are not those that were measured; run go test ./tapeserver/cuts -run StoreCalls -update", page)
}

// between returns text with what stands between the marks of a name replaced.
func between(t *testing.T, text, name, table string) string {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s lacks the marks %q and %q", page, begin, end)
	}
	return before + begin + table + end + after
}

func writesTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| RPC | store calls | a repeat |\n| --- | --- | --- |\n")
	all := entries()
	slices.SortStableFunc(all, inProtocolOrder)
	for _, c := range all {
		if strings.HasSuffix(c.what, "meanwhile") { // the calls are those of another case
			continue
		}
		calls := executionsOf(c).storeCalls(t)
		cell := strings.Join(calls, " ")
		if slices.Contains(calls, opMulti) {
			cell += "; " + without(c.calls(t, true)) + " where the store commits to one run at a time"
		}
		again := c.again
		if again == "" {
			again = "changes nothing"
		}
		if c.answers != "" {
			again += "; is answered " + c.answers
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name(), cell, again)
	}
	return b.String()
}

func without(calls []string) string {
	if len(calls) == 0 {
		return "refused"
	}
	return strings.Join(calls, " ")
}

func readsTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| RPC | store calls |\n| --- | --- |\n")
	all := slices.Clone(reads)
	slices.SortStableFunc(all, inProtocolOrder)
	for _, r := range all {
		r.setup = furnished
		fmt.Fprintf(&b, "| %s | %s |\n", r.name(), strings.Join(r.calls(t, false), " "))
	}
	return b.String()
}

func inProtocolOrder(a, b entry) int { return place(a.rpc) - place(b.rpc) }

func place(rpc string) int {
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		if string(methods.Get(i).Name()) == rpc {
			return i
		}
	}
	return -1
}
