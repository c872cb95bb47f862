package bigtable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
)

// A row with a bad mutation is not changed at all, even by the good mutations before it. The
// other rows of the request are changed.
func TestAppliesWholeRows(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		good := setCell("f", "good", "")
		unknown := setCell("g", "q", "")
		odd := setCell("f", "q", "")
		odd.GetSetCell().TimestampMicros = 1001
		for name, bad := range map[string]*bigtablepb.Mutation{
			"unknown family":  unknown,
			"odd timestamp":   odd,
			"no mutation":     {},
			"no aggregate":    {Mutation: &bigtablepb.Mutation_AddToCell_{AddToCell: &bigtablepb.Mutation_AddToCell{FamilyName: "f"}}},
			"delete nowhere":  {Mutation: &bigtablepb.Mutation_DeleteFromFamily_{DeleteFromFamily: &bigtablepb.Mutation_DeleteFromFamily{FamilyName: "g"}}},
			"an empty period": {Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{FamilyName: "f", TimeRange: &bigtablepb.TimestampRange{StartTimestampMicros: 2000, EndTimestampMicros: 1000}}}},
		} {
			want := codes.InvalidArgument
			if strings.Contains(name, "unknown") || strings.Contains(name, "nowhere") {
				want = codes.NotFound
			}
			both := []*bigtablepb.Mutation{good, bad}
			c.refused(name, c.mutate(t.Context(), "row", both...), want)
			c.refused(name+", if", c.check(t.Context(), "row", nil, both, []*bigtablepb.Mutation{good}), want)
			c.refused(name+", else", c.check(t.Context(), "row", nil, []*bigtablepb.Mutation{good}, both), want)
			c.has("row")
			got := c.mutateRows(map[string][]*bigtablepb.Mutation{"row": both, "other " + name: {good}})
			if got["row"] != want || got["other "+name] != codes.OK {
				t.Errorf("%s, in one row of two: got %v, want %v for that row only", name, got, want)
			}
			got = c.mutateRows(map[string][]*bigtablepb.Mutation{"row": both})
			if got["row"] != want {
				t.Errorf("%s, in the only row: got %v, want %v", name, got, want)
			}
			c.has("row")
			c.has("other "+name, "f:good=")
		}
		_, err := c.data.ReadModifyWriteRow(t.Context(), &bigtablepb.ReadModifyWriteRowRequest{TableName: c.table.String(), RowKey: []byte("row"),
			Rules: []*bigtablepb.ReadModifyWriteRule{{FamilyName: "f", Rule: &bigtablepb.ReadModifyWriteRule_IncrementAmount{IncrementAmount: 1}}, {FamilyName: "g"}}})
		c.refused("a second rule", err, codes.NotFound)
		c.has("row")
	})
}

// mutateRows sends one MutateRows request, and returns the code of each row's answer. A
// request that fails as a whole ends the test.
func (c *rawClient) mutateRows(rows map[string][]*bigtablepb.Mutation) map[string]codes.Code {
	c.t.Helper()
	req := &bigtablepb.MutateRowsRequest{TableName: c.table.String()}
	keys := slices.Sorted(maps.Keys(rows))
	for _, key := range keys {
		req.Entries = append(req.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: []byte(key), Mutations: rows[key]})
	}
	stream, err := c.data.MutateRows(c.t.Context(), req)
	if err != nil {
		c.t.Fatal(err)
	}
	answers := map[string]codes.Code{}
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return answers
		}
		if err != nil {
			c.t.Fatalf("the request failed as a whole: %v", err)
		}
		for _, entry := range res.Entries {
			key := keys[entry.Index]
			if _, twice := answers[key]; twice {
				c.t.Errorf("the row %q is answered twice", key)
			}
			answers[key] = codes.Code(entry.Status.GetCode())
		}
	}
}

// A client learns of each row of a MutateRows request by itself, as Google's own test of
// its client demands.
func TestAnswersRowByRow(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		client, err := bigtable.NewClientWithConfig(t.Context(), c.table.Project, c.table.Instance,
			bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(c.conn))
		if err != nil {
			t.Fatal(err)
		}
		table := client.Open(c.table.Table)
		set := func(family string) *bigtable.Mutation {
			m := bigtable.NewMutation()
			m.Set(family, "q", bigtable.ServerTime, []byte("v"))
			return m
		}
		errs, err := table.ApplyBulk(t.Context(), []string{"a", "b"}, []*bigtable.Mutation{set("g"), set("h")})
		if err != nil || len(errs) != 2 || status.Code(errs[0]) != codes.NotFound || status.Code(errs[1]) != codes.NotFound {
			t.Errorf("two bad rows: got %v, %v, want NotFound for each", errs, err)
		}
		errs, err = table.ApplyBulk(t.Context(), []string{"a", "b", "c"}, []*bigtable.Mutation{set("f"), set("g"), set("f")})
		if err != nil || len(errs) != 3 || errs[0] != nil || status.Code(errs[1]) != codes.NotFound || errs[2] != nil {
			t.Errorf("a bad row between good ones: got %v, %v, want NotFound for it alone", errs, err)
		}
		c.has("a", "f:q=v")
		c.has("b")
		c.has("c", "f:q=v")
	})
}

// A test has some rows of a request refused. The others are applied.
func TestRefusesRows(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		refuse := s.RefuseRows(1, func(c Call) bool { return c.Method == "MutateRows" }, func(key []byte) error {
			if string(key) < "c" {
				return status.Error(codes.ResourceExhausted, "full")
			}
			return nil
		})
		rows := map[string][]*bigtablepb.Mutation{"a": {setCell("f", "q", "1")}, "b": {setCell("g", "q", "2")}, "c": {setCell("f", "q", "3")}}
		got := c.mutateRows(rows)
		if want := (map[string]codes.Code{"a": codes.ResourceExhausted, "b": codes.ResourceExhausted, "c": codes.OK}); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		c.has("a")
		c.has("c", "f:q=3")
		if got := c.mutateRows(rows); got["a"] != codes.OK || got["b"] != codes.NotFound || refuse.Count() != 1 {
			t.Errorf("after that: got %v", got)
		}
		c.has("a", "f:q=1")
	})
}

// The gate knows families that came later, and those that went.
func TestFollowsFamilies(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		change := func(m *adminpb.ModifyColumnFamiliesRequest_Modification) {
			t.Helper()
			_, err := c.admin.ModifyColumnFamilies(t.Context(), &adminpb.ModifyColumnFamiliesRequest{Name: c.table.String(), Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{m}})
			if err != nil {
				t.Fatal(err)
			}
		}
		c.refused("before", c.mutate(t.Context(), "row", setCell("g", "q", "")), codes.NotFound)
		change(&adminpb.ModifyColumnFamiliesRequest_Modification{Id: "g", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Create{Create: &adminpb.ColumnFamily{}}})
		c.refused("with it", c.mutate(t.Context(), "row", setCell("g", "q", "")), codes.OK)
		change(&adminpb.ModifyColumnFamiliesRequest_Modification{Id: "g", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{Drop: true}})
		c.refused("after", c.mutate(t.Context(), "row", setCell("f", "q", ""), setCell("g", "q", "")), codes.NotFound)
		c.has("row")
		c.table.Table = "another"
		c.refused("no table", c.mutate(t.Context(), "row", setCell("f", "q", "")), codes.NotFound)
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	c := newRawClient(t, startServer(t, emulators.TierEmulator))
	ctx := t.Context()
	for name, try := range map[string]struct{ fits, beyond func() error }{
		"row key": {func() error { return c.mutate(ctx, strings.Repeat("k", 4<<10), setCell("f", "q", "")) },
			func() error { return c.mutate(ctx, strings.Repeat("k", 4<<10+1), setCell("f", "q", "")) }},
		"qualifier": {func() error { return c.mutate(ctx, "row", setCell("f", strings.Repeat("q", 16<<10), "")) },
			func() error { return c.mutate(ctx, "row", setCell("f", strings.Repeat("q", 16<<10+1), "")) }},
		"table": {func() error { return c.create(strings.Repeat("t", 50), "f") }, func() error { return c.create(strings.Repeat("t", 51), "f") }},
		"family": {func() error { return c.create("family", strings.Repeat("f", 64)) },
			func() error { return c.create("families", strings.Repeat("f", 65)) }},
	} {
		c.refused(name+" at the limit", try.fits(), codes.OK)
		c.refused(name+" beyond the limit", try.beyond(), codes.InvalidArgument)
	}
	c.refused("an empty row key", c.mutate(ctx, "", setCell("f", "q", "")), codes.InvalidArgument)
	c.refused("no mutations", c.check(ctx, "row", nil, nil, nil), codes.InvalidArgument)
	c.refused("a message beyond gRPC's own limit", c.mutate(ctx, "row", setCell("f", "large", strings.Repeat("v", 5<<20))), codes.OK)
	if columns, err := c.columns("row", nil); err != nil || len(columns) != 2 {
		t.Errorf("an answer beyond gRPC's own limit: %d cells, %v", len(columns), err)
	}
}

// What is too large to be sent for every test is shown to the gate only.
func TestLargeLimits(t *testing.T) {
	t.Parallel()
	schema := &tableSchema{families: map[string]*adminpb.ColumnFamily{"f": {}}}
	row := []byte("row")
	var many []*bigtablepb.Mutation
	for range 100_001 {
		many = append(many, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromRow_{}})
	}
	rows := func(each ...int) *bigtablepb.MutateRowsRequest {
		req := &bigtablepb.MutateRowsRequest{}
		for _, n := range each {
			req.Entries = append(req.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: row, Mutations: many[:n]})
		}
		return req
	}
	value := func(size int) *bigtablepb.MutateRowRequest {
		m := setCell("f", "q", "")
		m.GetSetCell().Value = make([]byte, size)
		return &bigtablepb.MutateRowRequest{RowKey: row, Mutations: []*bigtablepb.Mutation{m}}
	}
	for name, c := range map[string]struct{ fits, beyond any }{
		"cell":      {value(100 << 20), value(100<<20 + 1)},
		"mutations": {&bigtablepb.MutateRowRequest{RowKey: row, Mutations: many[1:]}, &bigtablepb.MutateRowRequest{RowKey: row, Mutations: many}},
		"each list": {&bigtablepb.CheckAndMutateRowRequest{RowKey: row, TrueMutations: many[1:], FalseMutations: many[1:]},
			&bigtablepb.CheckAndMutateRowRequest{RowKey: row, TrueMutations: many[1:], FalseMutations: many}},
		"rows": {rows(60_000, 40_000), rows(60_000, 40_001)},
	} {
		if err := schema.check(c.fits); err != nil {
			t.Errorf("%s at the limit: %v", name, err)
		}
		if err := schema.check(c.beyond); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s beyond the limit: %v", name, err)
		}
	}
}

func (c *rawClient) create(table, family string) error {
	_, err := c.admin.CreateTable(c.t.Context(), &adminpb.CreateTableRequest{Parent: c.table.parent(), TableId: table,
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{family: {}}}})
	return err
}

// Filters are judged though no row is there to be filtered.
func TestFilters(t *testing.T) {
	t.Parallel()
	c := newRawClient(t, startServer(t, emulators.TierEmulator))
	pass := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{PassAllFilter: true}}
	chain := func(parts ...*bigtablepb.RowFilter) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Chain_{Chain: &bigtablepb.RowFilter_Chain{Filters: parts}}}
	}
	interleave := func(parts ...*bigtablepb.RowFilter) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Interleave_{Interleave: &bigtablepb.RowFilter_Interleave{Filters: parts}}}
	}
	value := func(size int) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ValueRegexFilter{ValueRegexFilter: []byte(strings.Repeat("v", size))}}
	}
	nested := func(depth int) *bigtablepb.RowFilter {
		f := pass
		for range depth {
			f = chain(pass, f)
		}
		return f
	}
	within := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{Condition: &bigtablepb.RowFilter_Condition{PredicateFilter: pass, TrueFilter: chain(pass)}}}
	for name, f := range map[string]struct {
		filter *bigtablepb.RowFilter
		want   codes.Code
	}{
		"chain of two":        {chain(pass, pass), codes.OK},
		"chain of one":        {chain(pass), codes.InvalidArgument},
		"chain of none":       {chain(), codes.InvalidArgument},
		"interleave of two":   {interleave(pass, pass), codes.OK},
		"interleave of one":   {chain(pass, interleave(pass)), codes.InvalidArgument},
		"chain in condition":  {within, codes.InvalidArgument},
		"as large as may be":  {value(20_480 - 4), codes.OK},
		"too large":           {value(20_481), codes.InvalidArgument},
		"as deep as may be":   {nested(20), codes.OK},
		"too deep":            {nested(21), codes.InvalidArgument},
		"none, which is fine": {nil, codes.OK},
	} {
		_, err := c.columns("absent", f.filter)
		c.refused(name, err, f.want)
		c.refused(name+", as a predicate", c.check(t.Context(), "absent", f.filter, []*bigtablepb.Mutation{setCell("f", "q", "")}, nil), f.want)
		if err := c.mutate(t.Context(), "absent", &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromRow_{}}); err != nil {
			t.Fatal(err)
		}
	}
}

// What the emulator does not have must not end its process.
func TestMethodsThatAreMissing(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		stream, err := c.data.ReadChangeStream(t.Context(), &bigtablepb.ReadChangeStreamRequest{TableName: c.table.String()})
		if err == nil {
			_, err = stream.Recv()
		}
		c.refused("ReadChangeStream", err, codes.Unimplemented)
		_, err = c.admin.CreateBackup(t.Context(), &adminpb.CreateBackupRequest{Parent: c.table.parent()})
		c.refused("CreateBackup", err, codes.Unimplemented)
		_, err = adminpb.NewBigtableInstanceAdminClient(c.conn).GetAppProfile(t.Context(), &adminpb.GetAppProfileRequest{Name: c.table.parent() + "/appProfiles/default"})
		c.refused("GetAppProfile", err, codes.Unimplemented)
		c.refused("a write after that", c.mutate(t.Context(), "row", setCell("f", "q", "v")), codes.OK)
		_, err = c.admin.DropRowRange(t.Context(), &adminpb.DropRowRangeRequest{Name: c.table.String(), Target: &adminpb.DropRowRangeRequest_RowKeyPrefix{RowKeyPrefix: []byte("r")}})
		c.refused("DropRowRange", err, codes.OK)
		c.has("row")
	})
}

// A panic of the emulator is an answer, and leaves the gate open.
func TestPanics(t *testing.T) {
	t.Parallel()
	g := newGate()
	info := &grpc.UnaryServerInfo{FullMethod: "/google.bigtable.admin.v2.BigtableTableAdmin/DropRowRange"}
	req := &adminpb.DropRowRangeRequest{Name: "table"} // takes all locks
	for want, panics := range map[codes.Code]func(){
		codes.Unimplemented: func() { _, _ = bigtablepb.BigtableServer(nil).MutateRow(context.Background(), nil) },
		codes.Internal:      func() { panic("something else") },
	} {
		_, err := g.unary(t.Context(), req, info, func(context.Context, any) (any, error) {
			panics()
			return nil, nil
		})
		if status.Code(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	g.locksOf("table").lock(req)() // or it waits for ever
}

// A reader sees a row as it was between two writes. The bare emulator shows some columns
// twice and others not at all, and the race detector knows why.
func TestReadsWholeRows(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		const columns, rounds = 100, 200
		var all []*bigtablepb.Mutation
		for i := range columns {
			all = append(all, setCell("f", fmt.Sprintf("column %02d", i), "v"))
		}
		if err := c.mutate(t.Context(), "row", all...); err != nil {
			t.Fatal(err)
		}
		first := setCell("f", "a first column", "v")
		gone := &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{
			FamilyName: "f", ColumnQualifier: first.GetSetCell().ColumnQualifier,
		}}}
		written := make(chan error, 1)
		go func() {
			var err error
			for i := range rounds {
				if err = c.mutate(t.Context(), "row", []*bigtablepb.Mutation{first, gone}[i%2]); err != nil {
					break
				}
			}
			written <- err
		}()
		for {
			select {
			case err := <-written:
				if err != nil {
					t.Error(err)
				}
				return
			default:
			}
			got, err := c.columns("row", nil)
			if err != nil || len(got) < columns || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
				t.Fatalf("read %d columns, %v, %v", len(got), got, err)
			}
		}
	})
}
