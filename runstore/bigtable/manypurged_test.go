package bigtable_test

import (
	"context"
	"fmt"
	"testing"

	client "cloud.google.com/go/bigtable"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// What a purge leaves is deleted by pages: a pass that is cut has deleted some, and the next one the rest.
func TestPurgedRowsAreDeletedByPages(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other, tbl := openDying(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, other, "run")
	const segments = 5000
	all, muts := make([]string, segments), make([]*client.Mutation, segments)
	for i := range segments {
		muts[i] = client.NewMutation()
		muts[i].Set("x", "", 0, fmt.Append(nil, i))
		all[i] = bigtable.SegmentKey("run", 1, int64(i))
	}
	if errs, err := tbl.ApplyBulk(t.Context(), all, muts); err != nil || errs != nil {
		t.Fatal(errs, err)
	}
	purge(t, other, lease)
	deleted := 0
	isDeletion := func(c bigtableemulator.Call) bool {
		if c.Table != table.String() || c.Method != writes || isServed(c) || len(c.Row) == 0 || c.Row[0] != 's' {
			return false
		}
		deleted++
		return deleted > 1
	}
	died := server(t).Refuse(0, s.only(isDeletion))
	_ = cutAt(t, died, func(ctx context.Context) error { bigtable.OrphanScan(ctx, s.Store); return nil })
	left := len(keys(t, tbl, "s"))
	if left == 0 || left == segments {
		t.Errorf("the pass that was cut left %d of %d segments", left, segments)
	}
	died.Stop()
	if marks := len(keys(t, tbl, "m")); marks != 1 {
		t.Fatalf("the run has %d marks, want 1", marks)
	}
	bigtable.OrphanScan(t.Context(), other)
	if left := keys(t, tbl, "s"); len(left) > 0 {
		t.Errorf("%d segments remain", len(left))
	}
}
