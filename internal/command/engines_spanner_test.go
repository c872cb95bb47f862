package command

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

// What up starts other processes can use: there is a store at the URL that it tells, and
// any other name gets one.
func TestUpStartsSpannerAlone(t *testing.T) {
	t.Parallel()
	requireSpanner(t)
	urls, stop := startUp(t, ownTemp(t), "spanner")
	if len(urls) != 1 {
		t.Fatalf("got the URLs %v, want one", urls)
	}
	if out, errs, status := run(t, "inspect", "runs", "--store", urls[0]); status != 0 || !strings.HasPrefix(out, "RUN ") {
		t.Errorf("inspect: status %d, %s%s", status, out, errs)
	}
	other := strings.Replace(urls[0], "tapestore/local/tapestore", "other/of-mine/runs", 1)
	const none = "there is no database projects/other/instances/of-mine/databases/runs"
	if _, errs, status := run(t, "inspect", "runs", "--store", other); status != 1 || !strings.Contains(errs, none) {
		t.Errorf("inspect before there is a store: status %d, %q, want %q", status, errs, none)
	}
	store, err := runstore.Open(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if out, errs, status := run(t, "inspect", "runs", "--store", other); status != 0 || !strings.Contains(out, "run-1") {
		t.Errorf("inspect: status %d, %s%s", status, out, errs)
	}
	stop(syscall.SIGTERM)
}

// requireSpanner ends a test that could not start an emulator, or must not.
func requireSpanner(t *testing.T) {
	t.Helper()
	server, err := spanneremulator.Start(t.Context(), nil)
	emulators.Require(t, err)
	defer server.Close()
	if e := server.Engine(); e.Tier == emulators.TierService {
		t.Skipf("not applicable: up starts no emulator while the environment names one, %s", e)
	}
}

// An emulator that somebody runs is used, and has afterwards what it had before.
func TestConformanceOnAnEmulatorOfSpanner(t *testing.T) {
	t.Parallel()
	server, err := spanneremulator.Start(t.Context(), nil)
	emulators.Require(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	url := "spanner://project/instance/database?emulator=" + server.Address() + "&retry_timeout=20s&create=no&role=clerk"
	// Without the case that kills processes: it takes Spanner's emulator long.
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", url, "--run", "^(I12/ttl-is-bounded|I3/token-alone-is-no-fence|I8/a-killed-server)")
	says := regexp.MustCompile(`^spanner emulator of unknown version \(service\) at \S+, a database for each case\n$`)
	if status != 0 || !says.MatchString(errs) {
		t.Errorf("got status %d and %q, want 0 and a line like %s", status, errs, says)
	}
	for _, want := range []string{"(emulator), capabilities", "passed         token-alone", "not applicable a-killed-server-keeps", "2 passed, 0 failed, 1 not applicable"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	calls := server.Calls()
	if calls["CreateDatabase"] == 0 || calls["CreateDatabase"] != calls["DropDatabase"] || calls["CreateInstance"] != calls["DeleteInstance"] {
		t.Errorf("databases and instances that were made stay: %v", calls)
	}
}

func TestSpannerRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"conformance --store spanner://project/instance":                               "spanner://project/instance/database",
		"conformance --store spanner://project/instance/db?emulator=127.0.0.1":         "host:port",
		"conformance --store spanner://project/instance/db?emulator=a:1&plutonium=1":   "plutonium",
		"conformance --store spanner://project/instance/db?emulator=a:1&omni=b:2":      "goes with no omni",
		"emulators up spanner --dir somewhere":                                         "emulator of Spanner keeps none",
		"emulators up mysql":                                                           "name postgres, alloydb, bigtable, spanner or all",
		"emulators":                                                                    "up postgres, up alloydb, up bigtable, up spanner, up all, or doctor",
		"conformance --store mysql://localhost/db":                                     "memory, sqlite, postgres, alloydb, bigtable and spanner",
		"conformance --store spanner://project/instance/db?omni=127.0.0.1:1 --run ^I1": "each case needs a database of its own in project/instance",
	} {
		if out, errs, status := run(t, strings.Fields(args)...); status != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
