package command

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
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
	if out, _, err := here(t, "", "health", "--live", "--timeout", "5m", "--address", address); err != nil || out != "ok\n" {
		t.Errorf("a live server: got %q, %v", out, err)
	}
	for args, want := range map[string]string{
		"--address " + address:                  "503 Service Unavailable: the store does not answer",
		"--address 127.0.0.1:1":                 "no answer",
		"--address elsewhere":                   "--address",
		"--address " + address + " --timeout 0": "--timeout",
	} {
		if out, _, err := here(t, "", append([]string{"health", "--timeout", "5m"}, strings.Fields(args)...)...); err == nil || out != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v, want an error that says %q", args, out, err, want)
		}
	}
}

// The address is the flag's, the variable's, the file's or the default, and never a wildcard; it is
// empty for a server without probes.
func TestProbeAddress(t *testing.T) {
	t.Parallel()
	named, without := configFile(t, "serve: {healthz_listen: ':1235'}\n"), configFile(t, "serve: {healthz_listen: ''}\n")
	broken, missing := configFile(t, "serve: {colour: red}\n"), filepath.Join(t.TempDir(), "missing.yaml")
	for _, c := range []struct{ flag, variable, file, want, fault string }{
		{"", "unset", "", defaultProbes, ""},
		{"", ":1234", "", "127.0.0.1:1234", ""},
		{"", "0.0.0.0:1234", "", "127.0.0.1:1234", ""},
		{"[::]:1234", "host:1", "", "127.0.0.1:1234", ""},
		{"[::1]:1234", "host:1", "", "[::1]:1234", ""},
		{"", "host:1", "", "host:1", ""},
		{"", "", "", "", ""},
		{"", "", named, "", ""},
		{"", "unset", named, "127.0.0.1:1235", ""},
		{"", "host:1", named, "host:1", ""},
		{"", "unset", without, "", ""},
		{"", "unset", broken, "", "serve.colour"},
		{"", "unset", missing, "", configVariable},
		{"host:1", "unset", missing, "host:1", ""},
		{"host", "host:1", "", "", "--address"},
		{"", "host", "", "", "TAPE_HEALTHZ_LISTEN"},
	} {
		got, err := probeAddress(c.flag, func(name string) (string, bool) {
			switch {
			case name == "TAPE_HEALTHZ_LISTEN" && c.variable != "unset":
				return c.variable, true
			case name == configVariable && c.file != "":
				return c.file, true
			}
			return "", false
		})
		if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
}

// A server without probes has nothing to ask: an image's health check does not fail for ever.
func TestHealthWithoutProbes(t *testing.T) {
	t.Setenv(configVariable, configFile(t, "serve: {healthz_listen: ''}\n"))
	if out, _, err := here(t, "", "health"); err != nil || out != "no probes\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
