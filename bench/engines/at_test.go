package engines

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/bench"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

func parsed(t *testing.T, storeURL string) runstore.URL {
	t.Helper()
	u, err := runstore.ParseURL(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestDurable(t *testing.T) {
	t.Parallel()
	for storeURL, want := range map[string]bool{
		"memory:":                              false,
		"sqlite::memory:":                      false,
		"sqlite:/a/tape.db":                    true,
		"sqlite:/a/tape.db?synchronous=FULL":   true,
		"sqlite:/a/tape.db?synchronous=normal": false,
		"postgres://host/db":                   true,
		"bigtable://p/i/t":                     true,
	} {
		if got, err := durable(parsed(t, storeURL)); err != nil || got != want {
			t.Errorf("%s: durable is %v, %v, want %v", storeURL, got, err, want)
		}
	}
}

// TestAtDescribes checks that the target at a URL is described as not durable where its commits are
// not synced.
func TestAtDescribes(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]bool{"": true, "?synchronous=normal": false} {
		target, err := At("sqlite:" + filepath.Join(t.TempDir(), "tape.db") + params).Start(t.Context())
		if err != nil || target.System.Durable != want || target.Serial {
			t.Errorf("%q: got %+v, %v", params, target.System, err)
		}
	}
}

// TestEmulatorOfTheEnvironment checks that an emulator that the environment names is treated like
// one that the URL names.
func TestEmulatorOfTheEnvironment(t *testing.T) {
	t.Setenv("SPANNER_EMULATOR_HOST", "localhost:9010")
	t.Setenv("BIGTABLE_EMULATOR_HOST", "localhost:8086")
	for given, want := range map[string]string{
		"spanner://p/i/d":                  "spanner://p/i/d?emulator=localhost%3A9010",
		"spanner://p/i/d?role=r":           "spanner://p/i/d?emulator=localhost%3A9010&role=r",
		"spanner://p/i/d?emulator=other:1": "spanner://p/i/d?emulator=other:1",
		"spanner://p/i/d?omni=other:1":     "spanner://p/i/d?omni=other:1",
		"bigtable://p/i/t":                 "bigtable://p/i/t?emulator=localhost%3A8086",
		"sqlite:/a.db":                     "sqlite:/a.db",
		"postgres://host/db":               "postgres://host/db",
	} {
		got := withEmulator(parsed(t, given), given)
		if got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
		if network := emulatorNetwork(got) != nil; network != (want != given || given == "spanner://p/i/d?emulator=other:1") {
			t.Errorf("%s: it has a network: %v", given, network)
		}
	}
	t.Setenv("SPANNER_EMULATOR_HOST", "")
	if got := withEmulator(parsed(t, "spanner://p/i/d"), "spanner://p/i/d"); got != "spanner://p/i/d" {
		t.Errorf("without an emulator: got %s", got)
	}
}

// TestPasswordOfTheEnvironment checks what the help of the command says: a URL needs no password,
// because the driver of the store and of the hand-written side takes it from the environment.
func TestPasswordOfTheEnvironment(t *testing.T) {
	t.Setenv("PGPASSWORD", "from the environment")
	config, _, err := postgres.ParseURL(parsed(t, "postgres://user@host/db"))
	if err != nil || config.ConnConfig.Password != "from the environment" {
		t.Errorf("got the password %q, %v", config.ConnConfig.Password, err)
	}
}

// TestPeersThatFail checks that peers which cannot be added leave the engine to be measured, with a
// system that says what is missing.
func TestPeersThatFail(t *testing.T) {
	registered := peers
	t.Cleanup(func() { peers = registered })
	peers = nil
	broken := errors.New("the port is taken")
	RegisterPeers("sound", func(_ context.Context, _ *postgresemulator.Server, target *bench.Target) error {
		target.Peers = append(target.Peers, bench.System{Name: "lock", Peer: true})
		return nil
	})
	RegisterPeers("broken", func(_ context.Context, _ *postgresemulator.Server, target *bench.Target) error {
		target.Peers = append(target.Peers, bench.System{Name: "half", Peer: true})
		target.Close = nil
		return broken
	})
	closed := false
	target := bench.Target{System: bench.System{Name: "postgres", Engine: "postgres"}, Close: func() error { closed = true; return nil }}
	if err := attachPeers(t.Context(), nil, &target); err != nil || closed || target.Close == nil {
		t.Errorf("got %v; closed: %v", err, closed)
	}
	if len(target.Peers) != 2 || target.Peers[0].Name != "lock" || target.Peers[1].Name != "broken" || target.Peers[1].Missing != broken.Error() || !target.Peers[1].Peer {
		t.Errorf("got the peers %+v", target.Peers)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := attachPeers(ctx, nil, &target); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt: got %v", err)
	}
}
