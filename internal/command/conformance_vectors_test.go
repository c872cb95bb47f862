package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func vectorsOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(append([]string{"conformance", "--vectors"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestVectors(t *testing.T) {
	t.Parallel()
	out, err := vectorsOutput(t, "--format", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got vectorList
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	text, err := vectorsOutput(t)
	if err != nil {
		t.Fatal(err)
	}
	var engines []string
	for _, v := range append(got.Engines, got.Kinds...) {
		engines = append(engines, v.Name)
		for _, field := range []string{v.Substrate, v.Payload, v.Enforcement, v.Token, v.Handoff} {
			if field == "" || !strings.Contains(text, field+"\n") {
				t.Errorf("%s: %q is empty or not in the text", v.Name, field)
			}
		}
	}
	for _, name := range strings.Split(strings.ReplaceAll(engineNames(), " or ", ", "), ", ") {
		if !strings.Contains(strings.Join(engines, " "), name) {
			t.Errorf("no vector of %s among %v", name, engines)
		}
	}
	for _, target := range []string{"Commit events", "RenewLease records", "ReleaseLease", "AcquireLease", "CommitMulti purge"} {
		if !strings.Contains(strings.Join(got.Targets, ","), target) {
			t.Errorf("no target %q among %v", target, got.Targets)
		}
	}
	for _, bad := range [][]string{{"--all"}, {"--format", "html"}, {"--run", "I3"}} {
		if _, err := vectorsOutput(t, bad...); err == nil {
			t.Errorf("--vectors %v was accepted", bad)
		}
	}
}
