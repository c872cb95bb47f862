package command

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestMoveAStoreWithReactions checks that the reactions of an imported store handle no event again: the
// import fails until their cursors are moved, which list shows.
func TestMoveAStoreWithReactions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, target := "sqlite:"+filepath.Join(dir, "source.db"), "sqlite:"+filepath.Join(dir, "target.db")
	file := filepath.Join(dir, "archive.jsonl")
	run := func(args ...string) (out, errs string, err error) {
		t.Helper()
		return here(t, "", args...)
	}
	store, err := runstore.Open(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	tp := tape.New(store, nil)
	enter := func(tp *tape.Tape, from, to int) {
		t.Helper()
		for n := from; n <= to; n++ {
			if _, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app", Invocation: fmt.Sprint(n)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := tape.Reaction{ID: "r", Pattern: "/tape/run/running/app/**", Handler: tape.HandlerTask, Shards: 2}
	if _, err := tp.RegisterReaction(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	enter(tp, 1, 3)
	list := func(url string) string {
		t.Helper()
		out, errs, err := run("reactions", "list", "--store", url)
		if err != nil {
			t.Fatalf("reactions list: %s, %v", errs, err)
		}
		lines := strings.Split(out, "\n")
		return strings.Join(strings.Fields(lines[1]), " ")
	}
	if got := list(source); got != "r /tape/run/running/app/** 2 3 0" {
		t.Errorf("the source has the backlog %q", got)
	}
	if out, _, err := run("reactions", "skip", "--all", "--store", source); err != nil || !strings.HasPrefix(out, "moved 1 reactions with 2 shards to the position ") {
		t.Errorf("skip: %s, %v", out, err)
	}
	if got := list(source); got != "r /tape/run/running/app/** 2 0 0" {
		t.Errorf("after skip the source has the backlog %q", got)
	}
	enter(tp, 4, 4)
	if got := list(source); got != "r /tape/run/running/app/** 2 1 0" {
		t.Errorf("after another entry the source has the backlog %q", got)
	}
	if _, _, err := run("export", "--store", source, "--to", file); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run("import", "--store", target, "--from", file); err == nil || exitStatus(err) == exitRefused || !strings.Contains(err.Error(), "reactions skip r,") {
		t.Fatalf("import: %v", err)
	}
	if _, _, err := run("import", "--store", target, "--from", file); err == nil || !strings.Contains(err.Error(), "--replay-feed") {
		t.Errorf("import into a store with a live reaction: %v", err)
	}
	if _, _, err := run("import", "--replay-feed", "--store", target, "--from", file); err == nil || !strings.Contains(err.Error(), "reactions skip r,") {
		t.Errorf("import that is repeated: %v", err) // it had nothing to write
	}
	if out, _, err := run("verify", "--from", file, "--with", target); err != nil {
		t.Errorf("verify: %s, %v", out, err)
	}
	if got := list(target); got != "r /tape/run/running/app/** 2 4 0" {
		t.Errorf("the target has the backlog %q", got)
	}
	if out, _, err := run("reactions", "skip", "--all", "--store", target); err != nil {
		t.Fatalf("skip: %s, %v", out, err)
	}
	copied, err := runstore.Open(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = copied.Close() })
	enter(tape.New(copied, nil), 5, 6)
	if got := list(target); got != "r /tape/run/running/app/** 2 2 0" {
		t.Errorf("after skip and two entries the target has the backlog %q", got)
	}
	if out, _, err := run("reactions", "replay", "r", "--store", target); err != nil || out != "moved 1 reactions with 2 shards to the position 0\n" {
		t.Errorf("replay: %s, %v", out, err)
	}
	if got := list(target); got != "r /tape/run/running/app/** 2 6 0" {
		t.Errorf("after replay the target has the backlog %q", got)
	}
	for _, c := range []struct{ args, want string }{
		{"reactions --store " + target, "list, skip or replay"},
		{"reactions skip none --store " + target, `names "none"`},
		{"reactions skip --all", "--store"},
		{"reactions skip --store " + target, "REACTION_ID…, or give --all"},
		{"reactions replay --store " + target, "REACTION_ID…, or give --all"},
		{"reactions replay r --all --store " + target, "not with both"},
		{"import --raise-epoch --store " + target + " --from " + file, "--replay-feed"},
	} {
		if _, _, err := run(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
	if got := list(target); got != "r /tape/run/running/app/** 2 6 0" {
		t.Errorf("after moves that were refused the target has the backlog %q", got)
	}
	// A deregistered reaction continues at its cursor when it is registered again.
	if _, err := tp.DeregisterReaction(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	again, third := filepath.Join(dir, "again.jsonl"), "sqlite:"+filepath.Join(dir, "third.db")
	if _, _, err := run("export", "--store", source, "--to", again); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run("import", "--store", third, "--from", again); err == nil || !strings.Contains(err.Error(), "reactions skip r,") {
		t.Errorf("import of a deregistered reaction: %v", err)
	}
}
