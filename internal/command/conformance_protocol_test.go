package command

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
)

// The command starts its own server on an engine, and tests a server that runs.
func TestConformanceOfTheProtocol(t *testing.T) {
	t.Parallel()
	program := builtCommand(t)
	out, errs, status := runCommandWith(t, ownTemp(t), program, "conformance", "--protocol", "--engine", "sqlite", "--fence", "connection", "--format", "json")
	var got conformance.Report
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	if sum := got.Summary; status != 0 || sum.Failed+sum.NotRun > 0 || sum.NotApplicable > 0 || sum.Passed < 100 {
		t.Errorf("status %d, %+v: %s", status, got.Summary, errs)
	}
	for _, g := range got.Guarantees {
		for _, c := range g.Cases {
			if c.Status == conformance.Failed {
				t.Errorf("%s/%s: %s", g.ID, c.Name, c.Reason)
			}
		}
	}
	if got.Engine != "sqlite" || got.Tier != "embedded" || !strings.Contains(strings.Join(got.Capabilities, " "), "fence=connection") {
		t.Errorf("the report is of %s (%s): %q", got.Engine, got.Tier, got.Capabilities)
	}

	server := startProgram(t, program, "--store", "memory", "--fence", "required", "--healthz-listen", "127.0.0.1:0")
	out, errs, status = runCommandWith(t, ownTemp(t), program, "conformance", "--protocol", "tape://"+server.grpc, "--probes", "http://"+server.probes, "--run", "^(T2|process|effects)/")
	for _, want := range []string{
		"server " + server.grpc + ` \(remote\), capabilities: fence=required, `, "T2 The first decision, effect and outcome win\n  passed  ", "passed +84-probes", "passed +22-first-outcome-stays",
		"20 passed, 0 failed, 2 not applicable",
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("status %d, no %q in\n%s%s", status, want, out, errs)
		}
	}
	if status != 0 {
		t.Errorf("status %d: %s", status, errs)
	}
}

// A server that is no server of the protocol fails the command, and so does one that lacks RPCs.
func TestConformanceOfTheProtocolFails(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--protocol": "--protocol needs the address of a server", "localhost:1": "an address goes with --protocol",
		"--protocol localhost:1 --all": "have no meaning", "--protocol localhost:1 --fence required": "have no meaning",
		"--protocol --engine memory --fence x": `--fence is "x"`, "--fence required --engine memory": "go with --protocol",
		"--protocol --engine memory --probes http://h": "--probes goes with the address", "--protocol --gallery": "--gallery goes with no other flag",
		"--protocol http://h:1": `the scheme "http"`, "--protocol --engine memory --run I3/": "matches no case", "--protocol --engine x": `--engine is "x"`,
	} {
		cmd := newRoot()
		cmd.SetArgs(append([]string{"conformance"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
