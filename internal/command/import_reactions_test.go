package command

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// storeOfReactions creates an SQLite store with reactions, of which those with a name that begins with
// "old" are deregistered. It returns the URL.
func storeOfReactions(t *testing.T, file string, ids ...string) (url string) {
	t.Helper()
	url = "sqlite:" + file
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	tp := tape.New(store, nil)
	if _, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app", Invocation: filepath.Base(file)}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		r := tape.Reaction{ID: id, Pattern: "/tape/run/running/app/**", Handler: tape.HandlerTask, Shards: 2}
		if _, err := tp.RegisterReaction(t.Context(), r, false); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(id, "old") {
			continue
		}
		if _, err := tp.DeregisterReaction(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	return url
}

// TestImportNamesTheReactionsOfTheArchive checks which reactions the error of an import names: all of the
// archive, also those that an earlier attempt has imported, and none of the target.
func TestImportNamesTheReactionsOfTheArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	archived := func(name string, ids ...string) (file string) {
		t.Helper()
		file = at(name + ".jsonl")
		if _, _, err := here(t, "", "export", "--store", storeOfReactions(t, at(name+".db"), ids...), "--to", file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	with, without := archived("with", "charge", "old"), archived("without")
	load := func(url, file string, flags ...string) error {
		t.Helper()
		_, _, err := here(t, "", append([]string{"import", "--store", url, "--from", file}, flags...)...)
		return err
	}

	empty := "sqlite:" + at("empty.db")
	if err := load(empty, with); err == nil || !strings.Contains(err.Error(), "reactions skip charge old,") {
		t.Errorf("an import: %v", err)
	}
	if err := load(empty, with, "--replay-feed"); err == nil || !strings.Contains(err.Error(), "reactions skip charge old,") {
		t.Errorf("an import that is repeated: %v", err)
	}

	used := storeOfReactions(t, at("used.db"), "mail", "old-mail")
	for range 2 {
		if err := load(used, without, "--replay-feed", "--raise-epoch"); err != nil {
			t.Errorf("an archive without reactions: %v", err)
		}
	}
	for range 2 {
		if err := load(used, with, "--replay-feed", "--raise-epoch"); err == nil || !strings.Contains(err.Error(), "reactions skip charge old,") {
			t.Errorf("an import into a store with reactions: %v", err)
		}
	}

	same := storeOfReactions(t, at("same.db"), "charge") // its cursors are positions in its own feed
	if err := load(same, with, "--replay-feed", "--raise-epoch"); exitStatus(err) != exitRefused || !strings.Contains(err.Error(), "reactions skip old,") {
		t.Errorf("an import into a store with a reaction of the same name: %v", err)
	}
}
