package group_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
)

func TestMain(m *testing.M) {
	childprocess.Main(m, func(args []string) error { return child(args[0], args[1]) })
}

const (
	// processTTL, 15 s, is long enough that a machine with other work renews in time. The test waits for
	// one expiry.
	processTTL    = 15 * time.Second
	processShards = 30
)

func processOptions() *group.Options {
	return &group.Options{TTL: processTTL, Logger: slog.New(slog.DiscardHandler)}
}

// child is a worker: it commits an event to each of its shards every 500 ms, until its standard input
// ends. After a loss of its membership, as on a machine with too much other work, it joins again.
func child(url, name string) error {
	ctx := childprocess.UntilStopped()
	store, err := runstore.Open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	g, err := group.New(store, "workers", processOptions())
	if err != nil {
		return err
	}
	for {
		err := g.Join(ctx, group.MemberSpec{Name: name}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, processShards, func(ctx context.Context, held *lease.Held, shard int) error {
				for {
					b := runstore.NewBatch(held.Fence().Run(), held.Fence())
					b.Append("write", []byte(name))
					if _, err := store.Commit(ctx, b); err != nil {
						return err
					}
					select {
					case <-time.After(500 * time.Millisecond):
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
			})
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case !lost(err):
			return err
		}
		fmt.Println("lost the membership:", err)
	}
}

// awaitOwners waits until each shard has an owner with a live lease, one of those wanted, and an event
// under that lease. It returns the owners.
func awaitOwners(t *testing.T, store runstore.RunStore, g *group.Group, want ...string) []string {
	t.Helper()
	owners := make([]string, processShards)
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now, err := store.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for shard := range processShards {
			if owners[shard] != "" {
				continue
			}
			head, err := store.GetRun(t.Context(), g.ShardRun(shard))
			if runstore.KindOf(err) != nil && runstore.KindOf(err) != runstore.ErrNotFound {
				t.Fatal(err)
			}
			if head.Live(now) && slices.Contains(want, string(head.Holder.Owner)) && head.LastSeq > 0 {
				last, err := store.ReadJournal(t.Context(), head.ID, head.LastSeq, 1)
				if err != nil {
					t.Fatal(err)
				}
				if len(last) == 1 && last[0].Token == head.Token {
					owners[shard] = string(head.Holder.Owner)
					continue
				}
			}
			missing++
		}
		if missing == 0 {
			return owners
		}
		if time.Now().After(deadline) { // a worker hangs
			t.Fatalf("%d shards have no owner of %v; owners %v", missing, want, owners)
		}
	}
}

// Three workers in processes of their own share 30 shards on SQLite. One is killed: the others own each
// shard again, the store has accepted the writes of one owner at a time, only the shards of the dead
// one have moved, and its membership has ended with one event.
func TestProcesses(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "store.db")
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	g, err := group.New(store, "workers", processOptions())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*childprocess.Process{}
	for _, name := range []string{"a", "b", "c"} {
		all[name] = childprocess.Start(t, nil, url, name)
	}
	before := awaitAssignment(t, g, "a", "b", "c")
	awaitOwners(t, store, g, "a", "b", "c")
	if err := all["b"].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	owners := awaitOwners(t, store, g, "a", "c")
	t.Logf("killed: every shard had an owner again after %v, with a TTL of %v; the goal is the TTL and 2 s", time.Since(killed).Round(time.Millisecond), processTTL)
	after := awaitAssignment(t, g, "a", "c")

	for deadline := time.Now().Add(5 * time.Minute); len(journalOf(t, store, g, "b"))%2 != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the dead member was not removed")
		}
	}
	undisturbed := true
	for name, w := range all {
		_ = w.In.Close() // one of them is dead
		for line := range w.Lines {
			t.Logf("%s %s", name, line)
			undisturbed = false
		}
		if err := w.Cmd.Wait(); err != nil && name != "b" {
			t.Errorf("worker %s: %v", name, err)
		}
	}
	if !undisturbed {
		t.Log("a worker lost its membership on a busy machine: the moves are not judged")
	}
	moved := 0
	for shard := range processShards {
		if after.Owners[shard] != before.Owners[shard] {
			moved++
			if before.Owners[shard] != "b" && undisturbed {
				t.Errorf("shard %d moved from %s to %s", shard, before.Owners[shard], after.Owners[shard])
			}
		}
		last, by := runstore.Token(0), map[runstore.Token]string{}
		for e, err := range runstore.Journal(t.Context(), store, g.ShardRun(shard), 1) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Token < last || by[e.Token] != "" && by[e.Token] != string(e.Data) {
				t.Errorf("shard %d: event %d of %q was written under token %v, after one of %q under token %v", shard, e.Seq, e.Data, e.Token, by[last], last)
			}
			last, by[e.Token] = e.Token, string(e.Data)
		}
	}
	if moved != processShards/3 && undisturbed {
		t.Errorf("%d shards moved, want those of the dead worker, %d; owners %v, then %v", moved, processShards/3, before.Owners, owners)
	}
	for name, want := range map[string]group.Reason{"a": group.Released, "b": group.Expired, "c": group.Released} {
		if name != "b" && !undisturbed {
			continue
		}
		events := journalOf(t, store, g, name)
		if len(events)%2 != 0 {
			t.Errorf("%d events of %s, want two for each membership", len(events), name)
		}
		var end group.Ended
		if err := json.Unmarshal(events[len(events)-1].Data, &end); err != nil || end.Reason != want {
			t.Errorf("the last end of %s: %+v, %v; want %s", name, end, err, want)
		}
	}
}

// awaitAssignment waits until the shards are assigned to the members, and returns the assignment.
func awaitAssignment(t *testing.T, g *group.Group, members ...string) group.Assignment {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		a, err := g.Assignment(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		owners := slices.Compact(slices.Sorted(slices.Values(a.Owners)))
		if slices.Equal(owners, members) {
			return a
		}
		if time.Now().After(deadline) { // a worker hangs
			t.Fatalf("the shards are assigned to %v, want %v", owners, members)
		}
	}
}

func journalOf(t *testing.T, store runstore.RunStore, g *group.Group, member string) (all []runstore.Event) {
	t.Helper()
	for e, err := range runstore.Journal(t.Context(), store, g.MemberRun(member), 1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}
