package bigtable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// epochRow is what the store knows of itself.
func epochRow(t testing.TB, tbl *client.Table) []byte {
	t.Helper()
	row, err := tbl.ReadRow(t.Context(), "g\x00", client.RowFilter(client.LatestNFilter(1)))
	if err != nil || len(row["x"]) != 1 {
		t.Fatalf("got %v, %v, want one cell", row, err)
	}
	return row["x"][0].Value
}

// isOver checks that a grant of an epoch before is over, and that the next one and the
// feed are of the new epoch.
func isOver(t testing.TB, s *bigtable.Store, old runstore.Lease, epoch runstore.Epoch) {
	t.Helper()
	var fenced *runstore.FencedError
	if _, err := s.Commit(t.Context(), appending(old, "zombie")); !errors.As(err, &fenced) || fenced.Holder != (runstore.Holder{}) {
		t.Errorf("a commit under the old grant: got %v, want ErrFenced without a holder", err)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: old.Fence(), TTL: runstore.MaxTTL}); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a renewal of the old grant: got %v, want ErrFenced", err)
	}
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: old.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}})
	if err != nil {
		t.Fatal(err)
	}
	if want := epoch.Floor() + 1; lease.Token != want {
		t.Errorf("the next grant has token %v, want %v", lease.Token, want)
	}
	commit(t, s, appending(lease.Lease, "after"))
	await(t, "an event above the floor", func() bool {
		all := whole(t, s, 0, 100, nil)
		return len(all) > 0 && all[len(all)-1].Position > runstore.Position(epoch.Floor())
	})
}

// A raise that was cut after its first write is finished by whoever opens the store
// next: every grant of before is over, and it is one raise.
func TestRaiseIsCut(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		name, method string
		row          byte
		first        bool // the first such write passes
	}{
		{"before the copies", writes, 'g', false},
		{"before the log is closed", swaps, 'l', false},
		{"before the first run", swaps, 'r', false},
		{"before the second run", swaps, 'r', true},
		{"before the end", swaps, 'g', true},
	} {
		t.Run(at.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, cut, tbl := openBare(t, table), openDying(t, table), raw(t, table)
			leases := []runstore.Lease{hold(t, s, "run"), hold(t, s, "other"), hold(t, s, "third")}
			commit(t, s, appending(leases[0], "before"))
			if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
			passed := !at.first
			err := cut.dieAt(t, func(c bigtableemulator.Call) bool {
				if c.Table != table.String() || c.Method != at.method || len(c.Row) == 0 || c.Row[0] != at.row {
					return false
				}
				was := passed
				passed = true
				return was
			}, func(ctx context.Context) error {
				_, err := cut.RaiseEpoch(ctx, "test")
				return err
			})
			if !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("got %v, want ErrUnknownOutcome", err)
			}
			if !bytes.Contains(epochRow(t, tbl), []byte(`"ended":false`)) {
				t.Errorf("the raise is not under way: %s", epochRow(t, tbl))
			}
			heir := open(t, table)
			if row := epochRow(t, tbl); !bytes.Contains(row, []byte(`"ended":true`)) {
				t.Errorf("the raise is not at its end: %s", row)
			}
			for _, l := range leases {
				isOver(t, heir, l, 1)
			}
			if all, err := heir.Epochs(t.Context()); err != nil || len(all) != 1 || all[0].Reason != "test" {
				t.Errorf("got the epochs %+v, %v, want one", all, err)
			}
			created := hold(t, s, "new") // by a handle of before
			if created.Token != runstore.Epoch(1).Floor()+1 {
				t.Errorf("a new run's first token is %v", created.Token)
			}
		})
	}
}

// A process is suspended before it copies the epochs, and another one raises the epoch. The late copies do
// not hide the new epoch from handles that do not know it yet.
func TestLateCopiesOfTheEpochs(t *testing.T) {
	t.Parallel()
	for epoch := range runstore.Epoch(2) {
		t.Run(fmt.Sprint("of epoch ", epoch), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			late := openBare(t, table)
			for range epoch {
				if _, err := late.RaiseEpoch(t.Context(), "test"); err != nil {
					t.Fatal(err)
				}
			}
			var creators []*bigtable.Store
			for range 8 { // each reads one of the copies, chosen at random
				creators = append(creators, openBare(t, table))
			}
			raiser := openBare(t, table)
			arrive := bigtable.CopiesOfEpochs(t, late)
			if _, err := raiser.RaiseEpoch(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
			arrive()
			for i, s := range creators {
				if got, want := hold(t, s, runstore.RunID(fmt.Sprint("run ", i))).Token, (epoch+1).Floor()+1; got != want {
					t.Errorf("handle %d: the first token of a new run is %d, want %d, of the new epoch", i, got, want)
				}
			}
		})
	}
}

// move makes a table one that was restored from another's backup, or whose profile was
// moved: what it says of where it is does not fit.
func move(t testing.TB, table bigtableemulator.TableName, tbl *client.Table) {
	t.Helper()
	row := epochRow(t, tbl)
	moved := bytes.Replace(row, []byte("/tables/"+table.Table), []byte("/tables/original"), 1)
	if bytes.Equal(row, moved) {
		t.Fatalf("the store does not say where it is: %s", row)
	}
	m := client.NewMutation()
	m.Set("x", "", 0, moved)
	if err := tbl.Apply(t.Context(), "g\x00", m); err != nil {
		t.Fatal(err)
	}
}

// A table that is another than it was raises the epoch when it is opened, and says why.
func TestRestoredTable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "before"))
	feed(t, s, 0, 1)
	move(t, table, tbl)
	next := open(t, table)
	isOver(t, next, lease, 1)
	all, err := next.Epochs(t.Context())
	if err != nil || len(all) != 1 || !strings.Contains(all[0].Reason, "/tables/original") || !strings.Contains(all[0].Reason, "restored, copied or failed over") {
		t.Errorf("got the epochs %+v, %v, want one that names the table of before", all, err)
	}
	_ = open(t, table)
	if all, err := next.Epochs(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("after another start: got the epochs %+v, %v, want one", all, err)
	}
}

// restoredFrom has the Admin API say that a table was restored from a backup, which the
// emulator cannot do.
func restoredFrom(backup string, begun time.Time) func(o *bigtable.Options) {
	return func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if table, ok := reply.(*adminpb.Table); ok && req.(*adminpb.GetTableRequest).View == adminpb.Table_FULL {
					table.RestoreInfo = &adminpb.RestoreInfo{SourceType: adminpb.RestoreSourceType_BACKUP, SourceInfo: &adminpb.RestoreInfo_BackupInfo{
						BackupInfo: &adminpb.BackupInfo{Backup: backup, StartTime: timestamppb.New(begun)},
					}}
				}
				return err
			}))
	}
}

// A table that was deleted and restored under its own name raises the epoch, once for each
// restore: also from a backup of a restored table, and from one whose name was used before.
func TestRestoredUnderTheSameName(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	lease := hold(t, open(t, table), "run")
	begun := time.Unix(1e9, 0)
	for i, restore := range []func(o *bigtable.Options){
		restoredFrom("backups/first", begun), restoredFrom("backups/second", begun), restoredFrom("backups/second", begun.Add(time.Second)),
	} {
		next := open(t, table, restore)
		isOver(t, next, lease, runstore.Epoch(i+1))
		_ = open(t, table, restore)
		all, err := next.Epochs(t.Context())
		if err != nil || len(all) != i+1 || !strings.Contains(all[i].Reason, "restored") {
			t.Errorf("restore %d: got the epochs %+v, %v, want one more", i+1, all, err)
		}
		lease = takeOver(t, next, "run")
	}
}

// Many processes that start at once on a restored table raise the epoch, and every
// grant of before is over for all of them.
func TestManyOpenARestoredTable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	lease := hold(t, s, "run")
	move(t, table, tbl)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			<-start
			next, err := tryOpen(t, table)
			if err != nil {
				t.Errorf("handle %d: %v", i, err)
				return
			}
			if _, err := next.Commit(t.Context(), appending(lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("handle %d: a commit under the old grant: got %v, want ErrFenced", i, err)
			}
		})
	}
	close(start)
	wg.Wait()
	all, err := s.Epochs(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("got %d epochs, %v, want one", len(all), err)
	}
}
