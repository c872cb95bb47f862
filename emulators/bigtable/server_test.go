package bigtable

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// onTiers runs a test on the emulator in this process, and on the program where
// there is one.
func onTiers(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	for _, tier := range []string{emulators.TierEmulator, emulators.TierLocal} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			test(t, startServer(t, tier))
		})
	}
}

// startServer starts an emulator that ends with the test.
func startServer(t *testing.T, tier string) *Server {
	t.Helper()
	if tier == emulators.TierLocal {
		_, err := findProgram(t.Context(), thisMachine())
		emulators.Require(t, err)
	}
	s, err := Start(t.Context(), &Options{Tier: tier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// rawClient is a client that sends what no proper one would.
type rawClient struct {
	t     *testing.T
	conn  *grpc.ClientConn
	data  bigtablepb.BigtableClient
	admin adminpb.BigtableTableAdminClient
	table TableName
}

// newRawClient has a table with the family f.
func newRawClient(t *testing.T, s *Server) *rawClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Address(), grpcproxy.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{t, conn, bigtablepb.NewBigtableClient(conn), adminpb.NewBigtableTableAdminClient(conn), s.NewTable()}
	_, err = c.admin.CreateTable(t.Context(), &adminpb.CreateTableRequest{
		Parent: c.table.parent(), TableId: c.table.Table,
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setCell(family, qualifier, value string) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: family, ColumnQualifier: []byte(qualifier), Value: []byte(value), TimestampMicros: -1,
	}}}
}

// mutate writes to a row.
func (c *rawClient) mutate(ctx context.Context, row string, mutations ...*bigtablepb.Mutation) error {
	_, err := c.data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: c.table.String(), RowKey: []byte(row), Mutations: mutations})
	return err
}

// check is a conditional mutation of a row.
func (c *rawClient) check(ctx context.Context, row string, filter *bigtablepb.RowFilter, yes, no []*bigtablepb.Mutation) error {
	_, err := c.data.CheckAndMutateRow(ctx, &bigtablepb.CheckAndMutateRowRequest{
		TableName: c.table.String(), RowKey: []byte(row), PredicateFilter: filter, TrueMutations: yes, FalseMutations: no,
	})
	return err
}

// columns lists what a row has, as "family:qualifier=value".
func (c *rawClient) columns(row string, filter *bigtablepb.RowFilter) (columns []string, err error) {
	c.t.Helper()
	stream, err := c.data.ReadRows(c.t.Context(), &bigtablepb.ReadRowsRequest{
		TableName: c.table.String(), Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte(row)}}, Filter: filter,
	})
	for err == nil {
		var part *bigtablepb.ReadRowsResponse
		if part, err = stream.Recv(); err != nil {
			break
		}
		for _, chunk := range part.Chunks {
			columns = append(columns, chunk.FamilyName.GetValue()+":"+string(chunk.Qualifier.GetValue())+"="+string(chunk.Value))
		}
	}
	if err.Error() == "EOF" {
		err = nil
	}
	return columns, err
}

// has fails the test unless a row has exactly these.
func (c *rawClient) has(row string, want ...string) {
	c.t.Helper()
	if got, err := c.columns(row, nil); err != nil || !slices.Equal(got, want) {
		c.t.Errorf("the row %q has %v (%v), want %v", row, got, err, want)
	}
}

// refused fails the test unless a request was refused by the gate.
func (c *rawClient) refused(what string, err error, want codes.Code) {
	c.t.Helper()
	if status.Code(err) != want {
		c.t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// The official client works on it as on the service.
func TestWithTheOfficialClient(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		ctx, name := t.Context(), s.NewTable()
		conn, err := grpc.NewClient("passthrough:///"+s.Address(), grpcproxy.DialOptions()...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		admin, err := bigtable.NewAdminClient(ctx, name.Project, name.Instance, option.WithGRPCConn(conn))
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: name.Table, Families: map[string]bigtable.GCPolicy{
			"f": bigtable.MaxVersionsPolicy(1),
		}}); err != nil {
			t.Fatal(err)
		}
		client, err := bigtable.NewClientWithConfig(ctx, name.Project, name.Instance,
			bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
		if err != nil {
			t.Fatal(err)
		}
		table := client.Open(name.Table)
		set := bigtable.NewMutation()
		set.Set("f", "q", bigtable.ServerTime, []byte("v"))
		matched := false
		if err := table.Apply(ctx, "row", bigtable.NewCondMutation(bigtable.PassAllFilter(), nil, set), bigtable.GetCondMutationResult(&matched)); err != nil || matched {
			t.Fatalf("a conditional mutation: matched %t, %v", matched, err)
		}
		if errs, err := table.ApplyBulk(ctx, []string{"row-2", "row-3"}, []*bigtable.Mutation{set, set}); err != nil || errs != nil {
			t.Fatalf("several rows: %v, %v", errs, err)
		}
		var rows []string
		if err := table.ReadRows(ctx, bigtable.PrefixRange("row"), func(r bigtable.Row) bool {
			rows = append(rows, r.Key()+"="+string(r["f"][0].Value))
			return true
		}, bigtable.ReverseScan()); err != nil || !slices.Equal(rows, []string{"row-3=v", "row-2=v", "row=v"}) {
			t.Errorf("read %v, %v", rows, err)
		}
		clock := bigtable.NewReadModifyWrite()
		clock.AppendValue("f", "clock", nil)
		if row, err := table.ApplyReadModifyWrite(ctx, "clock", clock); err != nil || time.Since(row["f"][0].Timestamp.Time()).Abs() > time.Minute {
			t.Errorf("the server's clock: %v, %v", row, err)
		}
		if err := s.Drop(ctx, name); err != nil {
			t.Error(err)
		}
		if err := s.Drop(ctx, name); err != nil {
			t.Errorf("again: %v", err)
		}
		if _, err := table.ReadRow(ctx, "row"); status.Code(err) != codes.NotFound {
			t.Errorf("after it was dropped: %v, want NotFound", err)
		}
	})
}

func TestEngine(t *testing.T) {
	t.Parallel()
	if got, want := startServer(t, emulators.TierEmulator).Engine().String(), "bigtable bttest "+moduleVersion+" (emulator)"; got != want {
		t.Errorf("engine: %s, want %s", got, want)
	}
	if e := startServer(t, emulators.TierLocal).Engine(); e.Tier != emulators.TierLocal || !strings.HasPrefix(e.Version, "cbtemulator ") {
		t.Errorf("engine: %s", e)
	}
}

// An emulator of somebody else's is left as it was found.
func TestOfSomebodyElse(t *testing.T) {
	t.Parallel()
	theirs := startServer(t, emulators.TierEmulator)
	before := newRawClient(t, theirs)
	s, err := startOn(t.Context(), hosttest.Machine(map[string]string{"BIGTABLE_EMULATOR_HOST": theirs.Address()}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Engine().String(), "bigtable emulator of unknown version (service)"; got != want {
		t.Errorf("engine: %s, want %s", got, want)
	}
	c := newRawClient(t, s)
	if err := c.mutate(t.Context(), "row", setCell("f", "q", "v")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, table := range []TableName{before.table, c.table} {
		_, err := before.admin.GetTable(t.Context(), &adminpb.GetTableRequest{Name: table.String()})
		if want := map[bool]codes.Code{true: codes.OK, false: codes.NotFound}[table == before.table]; status.Code(err) != want {
			t.Errorf("table %s after the end: %v, want %v", table, err, want)
		}
	}
	for address, want := range map[string]string{"nowhere": "host:port", "127.0.0.1:1": "no answer from 127.0.0.1:1"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := At(ctx, address); !hosttest.Contains(err, want) && !(address != "nowhere" && errors.Is(err, context.DeadlineExceeded)) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
		cancel()
	}
}

// The list of differences is no place for cases that do not exist.
func TestDifferencesNameCases(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, c := range conformance.Cases() {
		known[c.Guarantee+"/"+c.Name] = true
	}
	for _, d := range KnownGaps() {
		if d.Emulator == "" || d.Service == "" || d.Handled == "" {
			t.Errorf("not told in full: %+v", d)
		}
		for _, name := range d.Cases {
			if !known[name] {
				t.Errorf("%s: there is no case %s", d.Emulator, name)
			}
		}
	}
}
