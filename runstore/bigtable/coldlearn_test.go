package bigtable_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

func learnFingerprints(t testing.TB, s *bigtable.Store, id runstore.RunID) (digests int) {
	t.Helper()
	digests, err := bigtable.LearnFingerprints(t.Context(), s, id)
	if err != nil {
		t.Fatal(err)
	}
	return digests
}

// stuckReads holds every read of fingerprints until its context ends.
type stuckReads struct {
	grpc.ClientStream
	reads chan struct{}
}

func (s *stuckReads) SendMsg(m any) error {
	if req, ok := m.(*bigtablepb.ReadRowsRequest); ok {
		for _, r := range req.GetRows().GetRowRanges() {
			if k := string(r.GetStartKeyClosed()); len(k) > len("k..nnrun")+8 && k[0] == 'k' && isFingerprints(k) {
				s.reads <- struct{}{}
				<-s.Context().Done()
			}
		}
	}
	return s.ClientStream.SendMsg(m)
}

// Commits to a run with cold records go on while a read of the fingerprints takes long.
func TestCommitsDoNotWaitForFingerprints(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	all := kept{}
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("a/%05d", i), "value")
	}
	relieve(t, s)
	reads := make(chan struct{}, 100)
	other := open(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, d, cc, method, opts...)
			return &stuckReads{stream, reads}, err
		}))
	})
	for i := range 8 {
		edit(t, other, all, fmt.Sprintf("a/%05d", i), "changed")
	}
	<-reads
	all.readAs(t, s)
}

// After moves by another handle a handle reads the fingerprints of these moves alone.
func TestFingerprintsOfLaterMovesAreReadAlone(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	writer := openBare(t, table)
	lease := hold(t, writer, "run")
	const records = 4000
	for from := 0; from < records; from += 200 {
		b := appending(lease)
		for i := from; i < from+200; i++ {
			b.Put(costKey(i), costValue(i))
		}
		commit(t, writer, b)
		if err := bigtable.MoveIfNeeded(t.Context(), writer, "run"); err != nil {
			t.Fatal(err)
		}
	}
	count := &traffic{}
	s := openBare(t, table, func(o *bigtable.Options) { o.DialOptions = append(o.DialOptions, grpc.WithStatsHandler(count)) })
	put := func(keys ...runstore.RecordKey) {
		for _, k := range keys {
			b := appending(lease, "event")
			b.Put(k, []byte("value"))
			commit(t, s, b)
		}
		learnFingerprints(t, s, "run")
	}
	put(costKey(0), costKey(1), costKey(2), costKey(3), costKey(4))
	bigtable.SetMoveAbove(writer, 3<<10)
	for round := range 3 {
		if err := bigtable.MoveRecordsOnly(t.Context(), writer, "run"); err != nil {
			t.Fatal(err)
		}
		before := learnFingerprints(t, s, "run")
		_, bytes := count.during(func() { put(costKey(10 + round)) })
		if after := learnFingerprints(t, s, "run"); after < before {
			t.Errorf("round %d: %d digests after %d", round, after, before)
		}
		if bytes > 50_000 { // all have more than 120,000
			t.Errorf("round %d: after another handle's move a commit and its read of fingerprints took %.0f bytes", round, bytes)
		}
		b := appending(lease)
		for i := range 60 {
			b.Put(costKey(records+round*100+i), costValue(i))
		}
		commit(t, writer, b)
	}
}

// A handle drops the digests of deleted records when it has rewritten the cold rows.
func TestDigestsOfDeletedRecordsAreDropped(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t), cool)
	hold(t, s, "run")
	all := kept{}
	for round := range 6 {
		for _, value := range []string{"value", ""} {
			for i := range 60 {
				edit(t, s, all, fmt.Sprintf("a/%d/%d", round, i), value)
			}
			if err := bigtable.MoveRecords(t.Context(), s, "run", value == ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if digests := learnFingerprints(t, s, "run"); digests > 120 {
		t.Errorf("the handle has %d digests of %d records", digests, len(all))
	}
}

// A failover loses the latest row of a cold record, and not the one that it replaced. What is put then has a version
// above those that the record had, also if the cold rows were rewritten meanwhile.
func TestVersionsGrowWhereAnOlderColdRowComesBack(t *testing.T) {
	t.Parallel()
	for name, rewrites := range map[string]bool{"at once": false, "after a rewriting": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table, cool), raw(t, table)
			hold(t, s, "run")
			all, older := kept{}, map[string]bool{}
			for _, value := range []string{"one", "two"} {
				for _, key := range keys(t, tbl, "k") {
					older[key] = true
				}
				edit(t, s, all, "a/00000", value)
				for i := range 60 {
					edit(t, s, all, fmt.Sprintf("b/%d", i), value)
				}
				relieve(t, s)
			}
			was := all["a/00000"].Version
			for _, key := range keys(t, tbl, "k") {
				if !isFingerprints(key) && !older[key] {
					m := client.NewMutation()
					m.DeleteRow()
					if err := tbl.Apply(t.Context(), key, m); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
				t.Fatal(err)
			}
			s = openBare(t, table, cool)
			found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"a/00000"}})
			if err != nil || len(found) != 1 || found[0].Version != 1 {
				t.Fatalf("after the failover: got %+v, %v, want version 1", found, err)
			}
			commit(t, s, signal("run", "the first write of the epoch"))
			if rewrites {
				bigtable.Shift(s, 25*time.Hour, func() { // a rewriting waits for a day
					if _, err := bigtable.Rewrite(t.Context(), s, "run"); err != nil {
						t.Fatal(err)
					}
				})
			}
			s = openBare(t, table, cool)
			for i := range 6 {
				b := signal("run", "other")
				b.Put(runstore.RecordKey(fmt.Sprint("c/", i)), []byte("other"))
				commit(t, s, b)
			}
			learnFingerprints(t, s, "run")
			b := runstore.NewBatch("run", runstore.AtVersion("a/00000", 1))
			b.Append("signal", nil)
			b.Put("a/00000", []byte("anew"))
			if got := commit(t, s, b).Versions[0]; got <= was {
				t.Errorf("got version %d, which the record had before: %d was the last", got, was)
			}
		})
	}
}
