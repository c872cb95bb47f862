package command

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A server whose probes cannot listen where the operator wants them does not start: what asks there would
// be answered by another server. The server has not touched its store then.
func TestGivenProbeAddressInUse(t *testing.T) { // 84
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	file := filepath.Join(t.TempDir(), "tape.db")
	_, _, err = here(t, "", "serve", "--listen", "127.0.0.1:0", "--healthz-listen", taken.Addr().String(), "--store", "sqlite:"+file+"?create=no")
	if err == nil || !strings.HasPrefix(err.Error(), "--healthz-listen: listen tcp "+taken.Addr().String()) {
		t.Errorf("got %v, want an error of --healthz-listen", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the store was created")
	}
}

// The default address is shared by all servers of a host, the first of which has its probes there.
func TestDefaultProbeAddressInUse(t *testing.T) { // 83
	t.Parallel()
	if taken, err := net.Listen("tcp", defaultProbes); err == nil { // else another program has it
		defer func() { _ = taken.Close() }()
	}
	second := start(t, "--store", "memory")
	if second.probes != "" {
		t.Errorf("the second server has probes on %s too", second.probes)
	}
	if _, err := second.client(t).BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a"}); err != nil {
		t.Errorf("BeginRun: %v", err)
	}
}

// An address without a port, or with one that does not exist, is a fault of the configuration.
func TestAddressesOfServe(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"listen", "healthz-listen", "metrics-listen", "ui-listen"} {
		for text, ok := range map[string]bool{
			"127.0.0.1:0": true, "localhost:7000": true, "[::1]:65535": true,
			"127.0.0.1": false, "7000": false, "127.0.0.1:": false, "127.0.0.1:65536": false, "127.0.0.1:-1": false, "::1:7000": false, "127.0.0.1:nope": false,
		} {
			_, s := resolved(t, "", nil, "--"+flag, text)
			switch {
			case ok && len(s.faults) > 0:
				t.Errorf("--%s %s: %v", flag, text, s.faults)
			case !ok && (len(s.faults) != 1 || !strings.Contains(s.faults[0].Error(), "--"+flag+` is "`+text+`"; it is HOST:PORT, for example 127.0.0.1:`)):
				t.Errorf("--%s %s: %v, want a fault", flag, text, s.faults)
			}
		}
	}
	file := configFile(t, "serve:\n  healthz_listen: '7879'\n")
	if _, stderr, err := here(t, "", "config", "check", file); err == nil || !strings.Contains(stderr, `tape.yaml:2: serve.healthz_listen: is "7879"; it is HOST:PORT`) {
		t.Errorf("%v, %s", err, stderr)
	}
}
