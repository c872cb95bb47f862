package bigtable_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
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

// The retirement of a purged run with many cold rows and packs ends as soon as its handle has lost the claim: it
// deletes a page of rows at most.
func TestLongRetirementEndsWithItsClaim(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	var s *bigtable.Store
	loses := false
	s = openBare(t, table, before(func(_ string, kind byte) {
		if loses && (kind == 'k' || kind == 'd') {
			bigtable.LoseClaims(s)
		}
	}))
	lease := hold(t, s, "run")
	const more = 2*bigtable.ScanPage + 100
	plant(t, tbl, more, func(i int) string { return bigtable.ColdKey("run", 1, recordKey("c", i), 1, uint64(i)) })
	plant(t, tbl, more, func(i int) string { return bigtable.PackKey("run", 1, uint64(i), 0, 0) })
	purge(t, s, lease)
	loses = true
	for _, want := range [][3]int{
		{more - bigtable.ScanPage, more, 1}, {100, more, 1}, {0, more, 1}, {0, more - bigtable.ScanPage, 1}, {0, 100, 1}, {0, 0, 1},
	} {
		bigtable.OrphanScanOnce(t.Context(), s)
		if got := [3]int{len(keys(t, tbl, "k")), len(keys(t, tbl, "d")), len(keys(t, tbl, "m"))}; got != want {
			t.Errorf("%d cold rows, %d packs and %d marks remain, want %d", got[0], got[1], got[2], want)
		}
	}
	loses = false
	bigtable.OrphanScanOnce(t.Context(), s)
	if marks := len(keys(t, tbl, "m")); marks != 0 {
		t.Errorf("%d marks remain, want none", marks)
	}
}

// The retirement of an idle run deletes rows of purged generations of the run alone, whether its head names the
// others or not.
func TestRetirementKeepsThePresentGeneration(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	purge(t, s, hold(t, s, "run"))
	const generation = 3 // after a creation and a purge
	b := appending(holdAnew(t, s, "run"), "event")
	b.Release = true
	commit(t, s, b)
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	var want []string
	for since := range int64(generation + 2) {
		for _, key := range []string{bigtable.SegmentKey("run", since, 0), bigtable.ColdKey("run", since, "key", 1, 1), bigtable.PackKey("run", since, 1, 0, 0)} {
			plant(t, tbl, 1, func(int) string { return key })
			if since >= generation {
				want = append(want, key)
			}
		}
	}
	scanIdle(t, s)
	got := slices.Concat(keys(t, tbl, "s"), keys(t, tbl, "k"), keys(t, tbl, "d"))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the rows %q remain, want %q", got, want)
	}
	if marks := len(keys(t, tbl, "m")); marks != 0 {
		t.Errorf("%d marks remain, want none", marks)
	}
}

// A handle that has missed more writes of a run than its head remembers deletes the large values of its first
// attempt: the journal shows that it was refused.
func TestLargeValuesOfARefusedAttemptAreDeleted(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	busy, seldom := openBare(t, table), openBare(t, table)
	hold(t, busy, "run")
	const large = 5
	for i := range large {
		for range 70 {
			commit(t, busy, signal("run", "small"))
		}
		commit(t, seldom, signal("run", strings.Repeat(fmt.Sprint(i), 100<<10)))
	}
	bigtable.EmptyGarbage(t.Context(), seldom)
	if n := len(keys(t, raw(t, table), "d")); n != large {
		t.Errorf("got %d rows of large values, want %d", n, large)
	}
	if _, err := busy.ReadJournal(t.Context(), "run", 1, runstore.MaxPage); err != nil {
		t.Error(err)
	}
}
