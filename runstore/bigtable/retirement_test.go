package bigtable_test

import (
	"context"
	"fmt"
	"testing"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/bigtable"
)

// plant writes rows that have one empty cell.
func plant(t testing.TB, tbl *client.Table, n int, key func(i int) string) {
	t.Helper()
	all, muts := make([]string, n), make([]*client.Mutation, n)
	for i := range n {
		muts[i] = client.NewMutation()
		muts[i].Set("x", "", 0, nil)
		all[i] = key(i)
	}
	if errs, err := tbl.ApplyBulk(t.Context(), all, muts); err != nil || errs != nil {
		t.Fatal(errs, err)
	}
}

// Scans publish the events of a handle that died while the mark of a run that has left many rows is retired: they
// only queue it.
func TestLargeRetirementDelaysNoFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	scanner, dead, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, dead, "purged")
	const segments = 2*bigtable.ScanPage + 100
	plant(t, tbl, segments, func(i int) string { return bigtable.SegmentKey("purged", 1, int64(i)) })
	purge(t, dead, lease)
	hold(t, dead, "run")
	commit(t, dead, signal("run", "of a handle that died"))
	for range 3 { // each of the first two claims half of the shards
		bigtable.ScanClaimed(t.Context(), scanner)
	}
	if n := len(whole(t, openBare(t, table), 0, 10, nil)); n != 1 {
		t.Errorf("the feed has %d events, want 1", n)
	}
	if left := len(keys(t, tbl, "s")); left != segments {
		t.Errorf("the scans have left %d segments, want all %d", left, segments)
	}
	bigtable.Retire(t.Context(), scanner)
	if left, marks := len(keys(t, tbl, "s")), len(keys(t, tbl, "m")); left != 0 || marks != 1 {
		t.Errorf("%d segments and %d marks remain, want none and that of the other run", left, marks)
	}
}

// A mark that cannot be retired delays no others. The next scan queues it again.
func TestFailedRetirementIsRepeated(t *testing.T) {
	t.Parallel()
	table, r := newTable(t), &refusal{byTest: true}
	s, tbl := openBare(t, table, r.through), raw(t, table)
	for i := range 3 {
		purge(t, s, hold(t, s, runID("purged", i)))
	}
	r.next(swaps, codes.PermissionDenied)
	for _, want := range []int{1, 0} {
		bigtable.OrphanScanOnce(t.Context(), s)
		if marks := len(keys(t, tbl, "m")); marks != want {
			t.Errorf("%d marks remain, want %d", marks, want)
		}
	}
}

// before has do called before a handle sends a request that reads or changes rows of a kind.
func before(do func(method string, kind byte)) func(*bigtable.Options) {
	return func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, d, cc, method, opts...)
			return &beforeSending{stream, do}, err
		}))
	}
}

type beforeSending struct {
	grpc.ClientStream
	do func(method string, kind byte)
}

func (s *beforeSending) SendMsg(m any) error {
	switch m := m.(type) {
	case *bigtablepb.ReadRowsRequest:
		if ranges := m.GetRows().GetRowRanges(); len(ranges) > 0 {
			s.do(reads, ranges[0].GetStartKeyClosed()[0])
		}
	case *bigtablepb.MutateRowsRequest:
		s.do(writes, m.Entries[0].RowKey[0])
	}
	return s.ClientStream.SendMsg(m)
}

// The retirement of a run with many cold rows and packs ends as soon as its handle has lost the claim: it sends no
// further request that reads cold rows or deletes packs, and no such request concerns more than a page of rows.
func TestLongRetirementEndsWithItsClaim(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	var s *bigtable.Store
	requests, most := map[string]int{}, 0
	s = openBare(t, table, cool, before(func(method string, kind byte) {
		if what := method + " " + string(kind); most > 0 && (what == reads+" k" || what == writes+" d") {
			if requests[what]++; requests[reads+" k"]+requests[writes+" d"] == most {
				bigtable.LoseClaims(s)
			}
		}
	}))
	idle(t, s)
	filled(t, s, 60)
	relieve(t, s)
	const more = 2*bigtable.ScanPage + 100
	plant(t, tbl, more, func(i int) string { // of moves that may still be applied
		return bigtable.ColdKey("run", 1, recordKey("c", i), 1<<40, uint64(i))
	})
	plant(t, tbl, more, func(i int) string { return bigtable.PackKey("run", 1, uint64(i), 0, 0) })
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	for most = 1; most <= 7; most++ {
		clear(requests)
		scanIdleOnce(t, s)
		want := map[string]int{reads + " k": min(most, 6)}
		if most == 7 {
			want[writes+" d"] = 1
		}
		if fmt.Sprint(requests) != fmt.Sprint(want) {
			t.Errorf("a retirement that has lost its claim at request %d has made the requests %v, want %v", most, requests, want)
		}
	}
	most = 0
	scanIdleOnce(t, s)
	if marks, packs := len(keys(t, tbl, "m")), len(keys(t, tbl, "d")); marks != 0 || packs != 0 {
		t.Errorf("%d marks and %d packs remain, want none", marks, packs)
	}
}
