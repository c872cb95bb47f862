package bigtable_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// What a process that was suspended writes for a run which was purged and cleared away
// meanwhile, and then dies, is collected though no mark leads to it; what the run's next
// generation, other runs and writes under way have is not.
func TestRowsOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"s", "d"} {
		for _, anew := range []bool{false, true} {
			name := map[string]string{"s": "segments", "d": "packs"}[kind]
			if anew {
				name += ", and the run lives anew"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				suspended, s, tbl := openBare(t, table), openBare(t, table), raw(t, table)
				theirs := bulky(t, s, "other")
				seal(t, s, "other")
				lease := hold(t, s, "run")
				fill(t, s, lease, 1, 200)
				if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
					t.Fatal(err)
				}
				ctx, dies := context.WithCancel(t.Context())
				held := server(t).Hold(0, func(c bigtableemulator.Call) bool {
					return c.Table == table.String() && c.Method == writes && len(c.Row) > 0 && string(c.Row[:1]) == kind && isServed(c) == (kind == "d")
				})
				died := make(chan error, 1)
				go func() {
					if kind == "s" {
						died <- bigtable.Seal(ctx, suspended, "run")
						return
					}
					_, err := suspended.Commit(ctx, heavy("run"))
					died <- err
				}()
				met(t, held, 1)
				purge(t, s, lease)
				bigtable.OrphanScan(t.Context(), s)
				own := func() (n int) {
					for _, k := range keys(t, tbl, kind) {
						if strings.Contains(k, "\x00\x03run") {
							n++
						}
					}
					return n
				}
				if own() != 0 {
					t.Fatalf("%d rows are left of the run that was purged", own())
				}
				dies()
				if err := <-died; err == nil {
					t.Fatal("it did not die")
				}
				held.Stop()
				await(t, "what it wrote late", func() bool { return own() >= 2 })
				kept := 0
				if anew {
					lease = holdAnew(t, s, "run")
					fill(t, s, lease, 1, 200)
					seal(t, s, "run")
					b := appending(lease, "event")
					b.Put("large", bytes.Repeat([]byte("x"), 100<<10))
					commit(t, s, b)
					dyingWrite(t, table, heavy("run")) // which may still be made, as far as is known
				}
				before := own()
				if late := 2; anew {
					kept = before - late
				}
				rest := len(keys(t, tbl, "s")) + len(keys(t, tbl, "d")) - before
				heir := openBare(t, table)
				collect(t, heir)
				if n := own(); n != kept {
					t.Errorf("%d rows of the run are left, of %d, want %d", n, before, kept)
				}
				if n := len(keys(t, tbl, "s")) + len(keys(t, tbl, "d")) - own(); n != rest {
					t.Errorf("%d other rows are left, want %d", n, rest)
				}
				if anew {
					for e, err := range runstore.Journal(t.Context(), heir, "run", 1) {
						if want := eventOf(int(e.Seq)); err != nil || e.Seq <= 200 && !bytes.Equal(e.Data, want) {
							t.Fatalf("event %d is %s, %v", e.Seq, short(e.Data), err)
						}
					}
				}
				if found, err := heir.ReadRecords(t.Context(), theirs.Run, runstore.RecordQuery{Keys: []runstore.RecordKey{"large"}}); err != nil || len(found) != 1 || len(found[0].Value) != 3<<20 {
					t.Errorf("the other run's record: got %d, %v", len(found), err)
				}
			})
		}
	}
}

// collect collects garbage.
func collect(t testing.TB, s *bigtable.Store) {
	t.Helper()
	if err := bigtable.CollectGarbage(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// A creation that is under way during a collection loses its mark, decides again, and sets another.
func TestCollectionMeetsACreation(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, creator, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	held := server(t).Hold(1, served(table, swaps))
	defer held.Stop()
	created := make(chan error, 1)
	go func() {
		_, err := creator.CreateRun(t.Context(), runstore.RunSpec{ID: "run"})
		created <- err
	}()
	met(t, held, 1)
	if n := len(keys(t, tbl, "m")); n != 1 {
		t.Fatalf("the creation has set %d marks, want 1", n)
	}
	collect(t, s)
	if n := len(keys(t, tbl, "m")); n != 0 {
		t.Errorf("%d marks remain after the collection, want none", n)
	}
	held.Stop()
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	if n := len(keys(t, tbl, "m")); n != 1 {
		t.Errorf("the run has %d marks, want 1", n)
	}
	if n := scanAll(t, s); n != 1 {
		t.Errorf("the scans found %d entries, want the run", n)
	}
}

// TestOneCollectionOfACreation checks that one collection leaves no mark and no large value of a creation that was
// never applied, and that scans delete its index entries after it.
func TestOneCollectionOfACreation(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	creation := heavy("run").Writes
	creation.Runnable = runstore.When{}
	dyingCreation(t, table, runstore.RunSpec{ID: "run", Writes: creation})
	if len(keys(t, tbl, "d")) == 0 {
		t.Fatal("the creation has written no large values")
	}
	collect(t, s)
	scanAll(t, s)
	for kind, what := range map[string]string{"m": "marks", "d": "large values", "i": "index entries"} {
		if left := len(keys(t, tbl, kind)); left > 0 {
			t.Errorf("%d %s are left", left, what)
		}
	}
}
