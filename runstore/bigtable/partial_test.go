package bigtable_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// refuseRows has the rows of a kind refused, in requests that write several rows. The
// other rows of these requests are written.
func refuseRows(t testing.TB, table bigtableemulator.TableName, times int, kind byte, code codes.Code) emulators.Fault {
	t.Helper()
	return server(t).RefuseRows(times, func(c bigtableemulator.Call) bool { return c.Table == table.String() && c.Method == writes },
		func(key []byte) error {
			if key[0] == kind {
				return status.Error(code, "refused by the test")
			}
			return nil
		})
}

// The rows that precede a commit are written in part. The commit is not applied, and
// says so; what was written for it is deleted. The same commit succeeds afterwards.
func TestCommitWritesSomeOfItsRows(t *testing.T) {
	t.Parallel()
	for _, kind := range []byte("imd") {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table), raw(t, table)
			hold(t, s, "run")
			if lease := hold(t, s, "idle"); kind == 'm' { // its next write sets a mark
				if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
					t.Fatal(err)
				}
				scanIdle(t, s)
			}
			id := map[bool]runstore.RunID{true: "idle", false: "run"}[kind == 'm']
			before := rest(t, tbl)
			fault := refuseRows(t, table, 0, kind, codes.InvalidArgument)
			_, err := s.Commit(t.Context(), heavy(id))
			fails(t, err, runstore.ErrUnavailable, err, runstore.NotApplied)
			fault.Stop()
			if fault.Count() == 0 {
				t.Fatal("the commit wrote no rows before it")
			}
			bigtable.EmptyGarbage(t.Context(), s)
			if left := rest(t, tbl); fmt.Sprintf("%q", left) != fmt.Sprintf("%q", before) {
				t.Errorf("rows of the commit are left: %q, before it there were %q", left, before)
			}
			if n := scanAll(t, s); n != 2 {
				t.Errorf("the scans found %d entries, want the two runs in runs", n)
			}
			if done := commit(t, s, heavy(id)); done.FirstSeq != 1 {
				t.Errorf("the repeat is event %d, want 1", done.FirstSeq)
			}
			if n := scanAll(t, s); n != 4 {
				t.Errorf("the scans found %d entries, want 4", n)
			}
			readAll(t, s)
		})
	}
}

// Rows that fail for a moment are written again, with their commit.
func TestCommitRepeatsSomeOfItsRows(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted} {
		table := newTable(t)
		s := openBare(t, table)
		hold(t, s, "run")
		fault := refuseRows(t, table, 2, 'd', code)
		commit(t, s, heavy("run"))
		if fault.Count() != 2 {
			t.Errorf("%v: the fault was met %d times, want 2", code, fault.Count())
		}
		if n := scanAll(t, s); n != 3 {
			t.Errorf("%v: the scans found %d entries, want 3", code, n)
		}
		readAll(t, s)
	}
}

// Only some of a segment's runs learn that the feed has their events. Whoever appends to it next
// tells the others, and each event is in the feed once.
func TestSomeRunsLearnWhatTheFeedHas(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	for _, id := range []runstore.RunID{"a", "b", "c"} {
		hold(t, s, id)
		commit(t, s, signal(id, "first"))
	}
	fault := server(t).RefuseRows(0, func(c bigtableemulator.Call) bool { return c.Table == table.String() && c.Method == writes },
		func(key []byte) error {
			if key[0] == 'r' && string(key[3:]) == "b" {
				return status.Error(codes.PermissionDenied, "refused by the test")
			}
			return nil
		})
	if err := bigtable.Publish(t.Context(), s, "a", "b", "c"); err == nil {
		t.Error("rows that could not be written are no error")
	}
	fault.Stop()
	for _, id := range []runstore.RunID{"a", "b", "c"} {
		commit(t, other, signal(id, "second"))
	}
	if err := bigtable.Publish(t.Context(), other, "a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	if n := len(whole(t, other, 0, 10, nil)); n != 6 {
		t.Errorf("the feed has %d events, want 6", n)
	}
}
