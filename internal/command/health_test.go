package command

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The exit status is the answer of the probe.
func TestHealthCommand(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	if out, _, err := here(t, "", "health", "--live", "--address", address); err != nil || out != "ok\n" {
		t.Errorf("a live server: got %q, %v", out, err)
	}
	for args, want := range map[string]string{
		"--address " + address:                  "503 Service Unavailable: the store does not answer",
		"--address 127.0.0.1:1":                 "no answer",
		"--address elsewhere":                   "--address",
		"--address " + address + " --timeout 0": "--timeout",
	} {
		if out, _, err := here(t, "", append([]string{"health"}, strings.Fields(args)...)...); err == nil || out != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v, want an error that says %q", args, out, err, want)
		}
	}
}

// The address is the flag's, the variable's or the default, and never a wildcard.
func TestProbeAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, variable, want string }{
		{"", "unset", defaultProbes},
		{"", ":1234", "127.0.0.1:1234"},
		{"", "0.0.0.0:1234", "127.0.0.1:1234"},
		{"[::]:1234", "host:1", "127.0.0.1:1234"},
		{"[::1]:1234", "host:1", "[::1]:1234"},
		{"", "host:1", "host:1"},
		{"", "", ""},
		{"host", "host:1", ""},
	} {
		got, err := probeAddress(c.flag, func(string) (string, bool) { return c.variable, c.variable != "unset" })
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q and %q: got %q, %v, want %q", c.flag, c.variable, got, err, c.want)
		}
	}
}
