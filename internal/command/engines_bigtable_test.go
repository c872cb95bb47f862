package command

import (
	"regexp"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

// An emulator that somebody runs is used, and has afterwards what it had before.
func TestConformanceOnAnEmulator(t *testing.T) {
	t.Parallel()
	server, err := bigtableemulator.Start(t.Context(), &bigtableemulator.Options{Tier: emulators.TierEmulator})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	url := "bigtable://project/instance/table?emulator=" + server.Address() + "&retry_timeout=20s&create=no"
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", url, "--run", fewCases+"|^I8/a-(lost-reply-is-resolved-by-the-store|killed-server)")
	// The case of lost replies cuts connections, of which the store may warn.
	says := regexp.MustCompile(`^bigtable emulator of unknown version \(service\) at \S+, a table for each case\n(\S+ \S+ WARN bigtable: .*\n)*$`)
	if status != 0 || !says.MatchString(errs) {
		t.Errorf("got status %d and %q, want 0 and a line like %s", status, errs, says)
	}
	for _, want := range []string{
		"(emulator), capabilities", "passed         a-killed-process-leaves", "passed         a-lost-reply-is-resolved",
		"not applicable a-killed-server-keeps", ", 0 failed, 1 not applicable",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	calls := server.Calls()
	if calls["CreateTable"] == 0 || calls["CreateTable"] != calls["DeleteTable"] {
		t.Errorf("%d tables were created and %d deleted", calls["CreateTable"], calls["DeleteTable"])
	}
	for url, want := range map[string]string{
		"bigtable://project/instance":                                "bigtable://project/instance/table",
		"bigtable://project/instance/table?emulator=127.0.0.1":       "host:port",
		"bigtable://project/instance/table?emulator=a:1&plutonium=1": "plutonium",
	} {
		if out, errs, status := run(t, "conformance", "--store", url); status != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %q, %q; want %q", url, status, out, errs, want)
		}
	}
}
