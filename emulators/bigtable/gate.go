package bigtable

import (
	"context"
	"path"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/emulators/internal/fault"
)

// gate intercepts all RPCs to an emulator, in the emulator's own server if that runs in
// this process, else in a proxy. It refuses what the service would refuse, applies faults, and
// counts.
type gate struct {
	faults *fault.Gate[Call, action]

	mu sync.Mutex
	// schemas and locks have the table's full name as key; locks remain when a table is deleted.
	schemas map[string]*tableSchema
	locks   map[string]*rowLocks
}

func newGate() *gate {
	return &gate{
		faults:  fault.NewGate[Call, action](),
		schemas: map[string]*tableSchema{}, locks: map[string]*rowLocks{},
	}
}

// requestTypes are the methods that the emulator has, with their request types. Any other
// method answers UNIMPLEMENTED or ends the emulator's process.
var requestTypes = map[string]func() proto.Message{
	"ReadRows":                 func() proto.Message { return &bigtablepb.ReadRowsRequest{} },
	"SampleRowKeys":            func() proto.Message { return &bigtablepb.SampleRowKeysRequest{} },
	"MutateRow":                func() proto.Message { return &bigtablepb.MutateRowRequest{} },
	"MutateRows":               func() proto.Message { return &bigtablepb.MutateRowsRequest{} },
	"CheckAndMutateRow":        func() proto.Message { return &bigtablepb.CheckAndMutateRowRequest{} },
	"ReadModifyWriteRow":       func() proto.Message { return &bigtablepb.ReadModifyWriteRowRequest{} },
	"PingAndWarm":              func() proto.Message { return &bigtablepb.PingAndWarmRequest{} },
	"CreateTable":              func() proto.Message { return &adminpb.CreateTableRequest{} },
	"ListTables":               func() proto.Message { return &adminpb.ListTablesRequest{} },
	"GetTable":                 func() proto.Message { return &adminpb.GetTableRequest{} },
	"UpdateTable":              func() proto.Message { return &adminpb.UpdateTableRequest{} },
	"DeleteTable":              func() proto.Message { return &adminpb.DeleteTableRequest{} },
	"ModifyColumnFamilies":     func() proto.Message { return &adminpb.ModifyColumnFamiliesRequest{} },
	"DropRowRange":             func() proto.Message { return &adminpb.DropRowRangeRequest{} },
	"GenerateConsistencyToken": func() proto.Message { return &adminpb.GenerateConsistencyTokenRequest{} },
	"CheckConsistency":         func() proto.Message { return &adminpb.CheckConsistencyRequest{} },
}

// tableGetter reads a table's schema from the emulator itself, not through the gate.
type tableGetter interface {
	GetTable(ctx context.Context, req *adminpb.GetTableRequest) (*adminpb.Table, error)
}

// admission is the state of an RPC that the gate has let in.
type admission struct {
	detached bool // the RPC continues if its sender leaves
	drop     bool // its reply is dropped
	leave    func()
	// bad holds, by index, the entries of a MutateRows request that are answered with an error and
	// not passed to the emulator. The other entries are applied.
	bad map[int]error
}

// enter applies the faults that match an RPC, checks the RPC, and locks its rows. An error refuses
// the RPC. The caller calls leave when the RPC has ended.
func (g *gate) enter(ctx context.Context, from tableGetter, method string, req any) (p admission, err error) {
	p.leave = func() {}
	call := callOf(ctx, method, req)
	faults := g.faults.Match(call.Method, call)
	if requestTypes[call.Method] == nil {
		return p, status.Errorf(codes.Unimplemented, "the emulator has no %s", method)
	}
	for _, f := range faults {
		switch f.Action.kind {
		case faultHold:
			<-f.Stopped
			p.detached = true
		case faultRefuse:
			return p, status.Errorf(codes.Unavailable, "a fault makes the emulator refuse %s", call.Method)
		case faultDropReply:
			p.detached, p.drop = true, true
		}
	}
	if p.bad, err = g.check(ctx, from, call.Table, req); err != nil {
		return p, err
	}
	for _, f := range faults {
		f.Action.refuseRows(req, p.bad)
	}
	p.leave = g.locksOf(call.Table).lock(req)
	switch call.Method {
	case "DeleteTable", "ModifyColumnFamilies", "UpdateTable":
		g.forget(call.Table)
		p.leave = func() { g.forget(call.Table) }
	}
	return p, nil
}

// answer returns the client's error: err, or UNAVAILABLE if the reply is dropped.
func (p admission) answer(method string, err error) error {
	if p.drop {
		return status.Errorf(codes.Unavailable, "a fault makes the emulator drop its answer to %s", path.Base(method))
	}
	return err
}

// check refuses a request, or some entries of MutateRows, as the service would. An unknown family
// may be new, so check then reads the schema again.
func (g *gate) check(ctx context.Context, from tableGetter, table string, req any) (bad map[int]error, err error) {
	g.mu.Lock()
	schema, known := g.schemas[table]
	g.mu.Unlock()
	if known {
		if bad, err = schema.checkEntries(req), schema.check(req); !lacksFamily(bad, err) {
			return bad, err
		}
	}
	about := (*adminpb.Table)(nil)
	if from != nil && table != "" {
		about, _ = from.GetTable(ctx, &adminpb.GetTableRequest{Name: table, View: adminpb.Table_SCHEMA_VIEW})
	}
	if about == nil {
		if err := (&tableSchema{}).check(req); status.Code(err) != codes.NotFound {
			return map[int]error{}, err
		}
		return map[int]error{}, nil // the emulator refuses a missing table if the request needs one
	}
	schema = &tableSchema{families: about.ColumnFamilies, micros: about.Granularity == adminpb.Table_MICROS}
	g.mu.Lock()
	g.schemas[table] = schema
	g.mu.Unlock()
	return schema.checkEntries(req), schema.check(req)
}

// lacksFamily reports whether a request, or an entry of it, names an unknown family.
func lacksFamily(bad map[int]error, err error) bool {
	for _, one := range bad {
		if status.Code(one) == codes.NotFound {
			return true
		}
	}
	return status.Code(err) == codes.NotFound
}

func (g *gate) locksOf(table string) *rowLocks {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.locks[table]
	if l == nil {
		l = &rowLocks{}
		g.locks[table] = l
	}
	return l
}

func (g *gate) forget(table string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.schemas, table)
}
