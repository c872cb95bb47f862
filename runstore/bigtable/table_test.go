package bigtable_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

func noCreate(o *bigtable.Options) { o.NoCreate = true }

func admin(t testing.TB, table bigtableemulator.TableName) *client.AdminClient {
	t.Helper()
	a, err := client.NewAdminClient(t.Context(), table.Project, table.Instance, rawOptions(t)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// commands takes the commands out of an error that tells them.
func commands(t testing.TB, err error, arguments string) []string {
	t.Helper()
	if !errors.Is(err, runstore.ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	_, all, there := strings.Cut(strings.SplitN(err.Error(), "\n", 2)[0], "create it: ")
	if !there {
		_, all, there = strings.Cut(strings.SplitN(err.Error(), "\n", 2)[0], "create them: ")
	}
	found := strings.Split(all, "; ")
	if !there {
		t.Fatalf("got %v, which has no command", err)
	}
	for i, c := range found {
		rest, ok := strings.CutPrefix(c, "cbt "+arguments+" ")
		if !ok {
			t.Fatalf("the command %q is none of cbt with %s", c, arguments)
		}
		found[i] = rest
	}
	return found
}

// Who may not create the table is told the exact commands that do. After these it opens.
func TestMissingTable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	a := admin(t, table)
	arguments := "-project " + table.Project + " -instance " + table.Instance

	_, err := tryOpen(t, table, noCreate)
	recorded := commands(t, err, arguments)
	if want := "createtable " + table.Table + " families="; len(recorded) != 1 || !strings.HasPrefix(recorded[0], want) {
		t.Fatalf("told %q, want %s…", recorded, want)
	}
	if there, err := a.Tables(t.Context()); err != nil || strings.Contains(strings.Join(there, " "), table.Table+" ") {
		t.Fatalf("there are the tables %v, %v", there, err)
	}
	families := map[string]client.GCPolicy{}
	for _, f := range strings.Split(strings.TrimPrefix(recorded[0], "createtable "+table.Table+" families="), ",") {
		name, ok := strings.CutSuffix(f, ":maxversions=1")
		if !ok {
			t.Fatalf("told the family %q, want one with maxversions=1", f)
		}
		families[name] = client.MaxVersionsPolicy(1)
	}

	// All but two of them.
	few := map[string]client.GCPolicy{}
	for name, policy := range families {
		if name != "e" && name != "h" {
			few[name] = policy
		}
	}
	if err := a.CreateTableFromConf(t.Context(), &client.TableConf{TableID: table.Table, Families: few}); err != nil {
		t.Fatal(err)
	}
	_, err = tryOpen(t, table, noCreate)
	for _, c := range commands(t, err, arguments) {
		word := strings.Fields(c)
		if len(word) < 3 || word[1] != table.Table || word[2] != "e" && word[2] != "h" {
			t.Fatalf("got the command %q, want one for the family e or h of %s", c, table.Table)
		}
		switch {
		case word[0] == "createfamily" && len(word) == 3:
			err = a.CreateColumnFamily(t.Context(), table.Table, word[2])
		case word[0] == "setgcpolicy" && len(word) == 4 && word[3] == "maxversions=1":
			err = a.SetGCPolicy(t.Context(), table.Table, word[2], client.MaxVersionsPolicy(1))
		default:
			t.Fatalf("got the command %q, want createfamily or setgcpolicy", c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, table, noCreate)
	commit(t, s, appending(hold(t, s, "run"), "event"))
	keepsOneVersion(t, a, table, 7)
}

// keepsOneVersion checks the number of a table's families, and that each of them keeps one version of its cells.
// A family "mine" keeps three.
func keepsOneVersion(t testing.TB, a *client.AdminClient, table bigtableemulator.TableName, n int) {
	t.Helper()
	info, err := a.TableInfo(t.Context(), table.Table)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.FamilyInfos) != n {
		t.Errorf("the table has the families %v, want %d", info.Families, n)
	}
	for _, f := range info.FamilyInfos {
		want := "versions() > 1"
		if f.Name == "mine" {
			want = "versions() > 3"
		}
		if f.GCPolicy != want {
			t.Errorf("the family %s has the policy %q, want %q", f.Name, f.GCPolicy, want)
		}
	}
}

// An opening that is cut behind its first request to add a family leaves no family without its policy.
func TestFamilyIsCreatedWithItsPolicy(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	a := admin(t, table)
	if err := a.CreateTableFromConf(t.Context(), &client.TableConf{TableID: table.Table, Families: map[string]client.GCPolicy{
		"h": client.MaxVersionsPolicy(1),
	}}); err != nil {
		t.Fatal(err)
	}
	requests := 0
	_, err := tryOpen(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if path.Base(method) == "ModifyColumnFamilies" {
					if requests++; requests > 1 {
						return status.Error(codes.PermissionDenied, "refused by the test")
					}
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	if !errors.Is(err, runstore.ErrUnavailable) || requests != 2 {
		t.Fatalf("got %v after %d requests, want ErrUnavailable after two", err, requests)
	}
	_ = open(t, table)
	keepsOneVersion(t, a, table, 7)
}

// A table that is there is used as it is; families that it lacks are added, with the
// policy that keeps one version.
func TestExistingTable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	a := admin(t, table)
	if err := a.CreateTableFromConf(t.Context(), &client.TableConf{TableID: table.Table, Families: map[string]client.GCPolicy{
		"h": client.MaxVersionsPolicy(1), "mine": client.MaxVersionsPolicy(3),
	}}); err != nil {
		t.Fatal(err)
	}
	first := open(t, table)
	commit(t, first, appending(hold(t, first, "run"), "event"))
	for range 2 {
		s := open(t, table)
		if found, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(found) != 1 {
			t.Errorf("got %d events, %v, want 1", len(found), err)
		}
	}
	keepsOneVersion(t, a, table, 8)
}

// Many processes that start at once, and find no table, share one store.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	start := make(chan struct{})
	var wg sync.WaitGroup
	stores := make([]*bigtable.Store, 10)
	for i := range stores {
		wg.Go(func() {
			<-start
			var err error
			if stores[i], err = tryOpen(t, table); err != nil {
				t.Errorf("handle %d: %v", i, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if t.Failed() {
		return
	}
	hold(t, stores[0], "run")
	for i, s := range stores {
		if done := commit(t, s, signal("run", "event")); done.FirstSeq != runstore.Seq(i+1) {
			t.Errorf("the event of handle %d has seq %d", i, done.FirstSeq)
		}
		if all, err := s.Epochs(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("handle %d knows the epochs %v, %v, want none", i, all, err)
		}
	}
	feed(t, stores[9], 0, 10)
}
