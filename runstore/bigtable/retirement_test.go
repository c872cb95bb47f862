package bigtable_test

import (
	"context"
	"fmt"
	"testing"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

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

// Scans publish the events of a handle that died while they retire the mark of a run that has left many rows:
// each does a part of that and goes on to the next scan.
func TestLargeRetirementDelaysNoFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	scanner, dead, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	t.Cleanup(func() { bigtable.StopRetiring(scanner) })
	bigtable.RetireBriefly(scanner)
	lease := hold(t, dead, "purged")
	plant(t, tbl, 3*bigtable.ScanPage, func(i int) string { return bigtable.SegmentKey("purged", 1, int64(i)) })
	purge(t, dead, lease)
	hold(t, dead, "run")
	commit(t, dead, signal("run", "of a handle that died"))
	bigtable.OrphanScan(t.Context(), scanner) // two scans
	if n := len(whole(t, openBare(t, table), 0, 10, nil)); n != 1 {
		t.Errorf("the feed has %d events, want 1", n)
	}
	last := len(keys(t, tbl, "s"))
	if last < 2*bigtable.ScanPage {
		t.Errorf("the first two scans have left %d segments, want at least %d", last, 2*bigtable.ScanPage)
	}
	for range 10 {
		bigtable.OrphanScanOnce(t.Context(), scanner)
		left := len(keys(t, tbl, "s"))
		if last-left > bigtable.ScanPage {
			t.Errorf("one scan has deleted %d segments, want at most %d", last-left, bigtable.ScanPage)
		}
		last = left
	}
	if marks := len(keys(t, tbl, "m")); last != 0 || marks != 1 {
		t.Errorf("%d segments and %d marks remain, want none and that of the other run", last, marks)
	}
}

// Handles that retire marks for short times leave nothing of many idle runs.
func TestBriefRetirementsEnd(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	idle(t, s)
	for i := range 5 {
		purge(t, s, hold(t, s, runID("purged", i)))
	}
	bigtable.RetireBriefly(s)
	bigtable.Ahead(s, func() {
		for n := 0; len(keys(t, tbl, "m")) > 0; n++ {
			if n == 100 {
				t.Fatalf("after %d scans %d marks remain, want none", n, len(keys(t, tbl, "m")))
			}
			bigtable.OrphanScanOnce(t.Context(), s)
		}
	})
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

// The retirement of a run with many cold rows and packs renews the claims of its handle between any two requests
// that read cold rows or delete packs, and no such request concerns more than a page of rows.
func TestLongRetirementKeepsItsClaims(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	other, tbl := openBare(t, table), raw(t, table)
	watching, requests := false, map[string]int{}
	s := openBare(t, table, cool, before(func(method string, kind byte) {
		if what := method + " " + string(kind); watching && (what == reads+" k" || what == writes+" d") {
			if n := bigtable.ScanClaimed(t.Context(), other); n != 0 {
				t.Errorf("before request %d of %q another handle has claimed %d shards", requests[what], what, n)
			}
			bigtable.AgeClaims(other)
			requests[what]++
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
	for range 2 { // each claims half of the shards
		bigtable.ScanClaimed(t.Context(), s)
	}
	bigtable.RenewOften(s)
	bigtable.ScanClaimed(t.Context(), other)
	watching = true
	bigtable.Ahead(s, func() { bigtable.ScanClaimed(t.Context(), s) })
	watching = false
	if want := map[string]int{reads + " k": 6, writes + " d": 3}; fmt.Sprint(requests) != fmt.Sprint(want) {
		t.Errorf("the scan has made the requests %v, want %v", requests, want)
	}
	if marks, packs := len(keys(t, tbl, "m")), len(keys(t, tbl, "d")); marks != 0 || packs != 0 {
		t.Errorf("%d marks and %d packs remain, want none", marks, packs)
	}
}
