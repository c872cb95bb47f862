package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
)

// list runs conformance --list in this process, with the arguments that follow it.
func list(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(append([]string{"conformance", "--list"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestListShowsEveryCase(t *testing.T) {
	t.Parallel()
	out, err := list(t)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, c := range conformance.Cases() {
		want := c.Name + " " + c.Doc
		for _, n := range c.Needs {
			want += " needs " + n.String() + ": " + n.About()
		}
		if !strings.Contains(words, want) {
			t.Errorf("no %q in the list", want)
		}
	}
	for line := range strings.Lines(out) {
		if len(line) > 101 { // with its newline
			t.Errorf("the line is longer than 100 bytes: %q", line)
		}
	}
	if !strings.HasPrefix(out, "I1 Exclusive: at most one live grant\n\n  one-winner-per-round-of-an-acquire-race\n    Eight handles ask ") {
		t.Errorf("the list begins with %.200q", out)
	}
}

func TestListAsJSON(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args  []string
		cases int
	}{
		{nil, len(conformance.Cases())}, {[]string{"--run", "^I7/wrong-clock-stamps"}, 1}, {[]string{"--protocol"}, len(protocol.Cases())},
	} {
		out, err := list(t, append(test.args, "--format", "json")...)
		if err != nil {
			t.Fatalf("%q: %v", test.args, err)
		}
		var got caseList
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%q: %v", test.args, err)
		}
		n := 0
		for _, g := range got.Guarantees {
			n += len(g.Cases)
			for _, c := range g.Cases {
				if g.Title == "" || c.Name == "" || c.Doc == "" {
					t.Errorf("%q: the case %s/%s has the title %q and the Doc %q", test.args, g.ID, c.Name, g.Title, c.Doc)
				}
				for _, need := range c.Needs {
					if need.Name == "" || need.About == "" {
						t.Errorf("%q: %s/%s needs %+v", test.args, g.ID, c.Name, need)
					}
				}
			}
		}
		if n != test.cases || got.Suite == "" {
			t.Errorf("%q: %d cases of the suite %q, want %d", test.args, n, got.Suite, test.cases)
		}
	}
}

func TestListRefusals(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--engine memory": "--list runs nothing", "--all": "--list runs nothing", "--gallery": "--list runs nothing", "--full": "--list runs nothing",
		"--protocol localhost:1": "--list runs nothing", "--protocol --fence required": "--list runs nothing",
		"--format html": "a list is text or json", "--run I99/": "matches no case", "--run (": "no regular expression",
	} {
		if out, err := list(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q; printed %.100q", args, err, want, out)
		}
	}
}

// A report shows what a failed case is about, below what the case said.
func TestReportExplainsAFailure(t *testing.T) {
	t.Parallel()
	c, _ := conformance.Find("I1/released-lease-is-free-at-once")
	r := conformance.Report{Guarantees: []conformance.ByGuarantee{{ID: "I1", Cases: []conformance.Result{
		{Name: c.Name, Status: conformance.Failed, Reason: "the next token is 3, want 2", Doc: c.Doc},
	}}}}
	var text, encoded bytes.Buffer
	if err := reportText(&text, r); err != nil {
		t.Fatal(err)
	}
	if words := strings.Join(strings.Fields(text.String()), " "); !strings.Contains(words, "the next token is 3, want 2 about the case: "+c.Doc) {
		t.Errorf("no Doc behind the message in\n%s", &text)
	}
	if err := reportJSON(&encoded, r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(encoded.String(), `"doc": "A holder releases its lease, `) {
		t.Errorf("no Doc in\n%s", &encoded)
	}
}
