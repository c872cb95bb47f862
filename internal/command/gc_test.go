package command

import (
	"path/filepath"
	"testing"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
)

// A segment that a process wrote for a run which had been purged meanwhile is deleted from the command
// line, once.
func TestGCCommand(t *testing.T) {
	t.Parallel()
	server, err := bigtableemulator.Start(t.Context(), nil)
	emulators.Require(t, err)
	t.Cleanup(func() { _ = server.Close() })
	url := "bigtable://project/instance/table?emulator=" + server.Address()
	if _, _, err := here(t, "", "gc", "--store", url); err == nil {
		t.Error("gc of a store that is not there: no error")
	}
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	purge := runstore.NewBatch("run", runstore.Unguarded("the test purges"))
	purge.Purge = true
	if _, err := store.Commit(t.Context(), purge); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(server.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	data, err := client.NewClientWithConfig(t.Context(), "project", "instance", client.ClientConfig{MetricsProvider: client.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = data.Close() })
	orphan := client.NewMutation()
	orphan.Set("x", "", 0, []byte("events"))
	// s, the hash of the run's id, its length, the id, life 1, segment 0: see runstore/bigtable/keys.go.
	key := "s" + "\xb9\xa8" + "\x00\x03run" + "\x00\x00\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x00"
	if err := data.Open("table").Apply(t.Context(), key, orphan); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 rows deleted\n", "0 rows deleted\n"} {
		if stdout, stderr, err := here(t, "", "gc", "--store", url); err != nil || stdout != want {
			t.Errorf("gc: %q, %q, %v, want %q", stdout, stderr, err, want)
		}
	}
}

// gc of a store in which crashes leave nothing says so.
func TestGCCommandWithoutGarbage(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "tape.db")
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if stdout, _, err := here(t, "", "gc", "--store", url); err != nil || stdout != "crashes leave nothing in "+url+"\n" {
		t.Errorf("gc: %q, %v", stdout, err)
	}
}
