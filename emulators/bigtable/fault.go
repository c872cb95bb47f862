package bigtable

import (
	"context"
	"path"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/emulators"
)

// Call is an RPC that an emulator received.
type Call struct {
	Method   string // "CheckAndMutateRow"
	Table    string // full name, "projects/…/instances/…/tables/…"; "" if the RPC concerns no table
	Row      []byte // key of the row that it writes, the first of several
	Metadata metadata.MD
}

func callOf(ctx context.Context, method string, req any) Call {
	call := Call{Method: path.Base(method)}
	call.Metadata, _ = metadata.FromIncomingContext(ctx)
	switch req := req.(type) {
	case *bigtablepb.PingAndWarmRequest: // its name is an instance's
	case interface{ GetTableName() string }: // of the data
		call.Table = req.GetTableName()
	case *adminpb.UpdateTableRequest:
		call.Table = req.GetTable().GetName()
	case *adminpb.CreateTableRequest:
		call.Table = req.Parent + "/tables/" + req.TableId
	case interface{ GetName() string }:
		call.Table = req.GetName()
	}
	switch req := req.(type) {
	case interface{ GetRowKey() []byte }:
		call.Row = req.GetRowKey()
	case *bigtablepb.MutateRowsRequest:
		if entries := req.GetEntries(); len(entries) > 0 {
			call.Row = entries[0].GetRowKey()
		}
	}
	return call
}

// faultKind is the kind of an action.
type faultKind int

const (
	faultWatch faultKind = iota
	faultHold
	faultRefuse
	faultDropReply
	faultRefuseRows
)

// action is what a fault does to an RPC.
type action struct {
	kind faultKind
	row  func(key []byte) error // of faultRefuseRows
}

// Watch only counts the RPCs that match; see emulators.Fault.
func (s *Server) Watch(match func(Call) bool) emulators.Fault {
	return s.gate.fault(faultWatch, 0, match)
}

// Hold keeps RPCs that match from the emulator until Stop delivers them, whether or not their
// senders still wait: the first so many, or all if times is 0.
func (s *Server) Hold(times int, match func(Call) bool) emulators.Fault {
	return s.gate.fault(faultHold, times, match)
}

// Refuse answers RPCs that match with UNAVAILABLE and does not pass them to the emulator: the first
// so many, or all if times is 0.
func (s *Server) Refuse(times int, match func(Call) bool) emulators.Fault {
	return s.gate.fault(faultRefuse, times, match)
}

// DropReplies lets the emulator execute RPCs that match and answers them with UNAVAILABLE: the
// first so many, or all if times is 0.
func (s *Server) DropReplies(times int, match func(Call) bool) emulators.Fault {
	return s.gate.fault(faultDropReply, times, match)
}

// RefuseRows applies MutateRows requests that match in part: a row for which row returns an error
// gets that error's status and is not applied; the other rows are applied. It affects the first so
// many requests, or all if times is 0.
func (s *Server) RefuseRows(times int, match func(Call) bool, row func(key []byte) error) emulators.Fault {
	return s.gate.faults.Add(action{kind: faultRefuseRows, row: row}, times, match)
}

// Calls returns the number of RPCs since the start by method, refused RPCs included.
func (s *Server) Calls() map[string]int { return s.gate.faults.Counts() }

func (g *gate) fault(does faultKind, times int, match func(Call) bool) emulators.Fault {
	return g.faults.Add(action{kind: does}, times, match)
}

// refuseRows adds the rows that the fault refuses to the bad entries of a request.
func (a action) refuseRows(req any, bad map[int]error) {
	all, ok := req.(*bigtablepb.MutateRowsRequest)
	if !ok || a.row == nil {
		return
	}
	for i, entry := range all.Entries {
		if err := a.row(entry.RowKey); err != nil {
			bad[i] = err
		}
	}
}
