package emulators

import (
	"context"
	"maps"
	"path"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/metadata"
)

// BigtableCall is an RPC that an emulator received.
type BigtableCall struct {
	Method   string // "CheckAndMutateRow"
	Table    string // full name, "projects/…/instances/…/tables/…"; "" if the RPC concerns no table
	Row      []byte // key of the row that it writes, the first of several
	Metadata metadata.MD
}

func bigtableCallOf(ctx context.Context, method string, req any) BigtableCall {
	call := BigtableCall{Method: path.Base(method)}
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

// bigtableFaultKind is what a fault does to an RPC.
type bigtableFaultKind int

const (
	bigtableFaultWatch bigtableFaultKind = iota
	bigtableFaultHold
	bigtableFaultRefuse
	bigtableFaultDropReply
	bigtableFaultRefuseRows
)

// BigtableFault is a fault that is applied to some RPCs of an emulator, from its creation to its
// Stop.
type BigtableFault struct {
	gate      *bigtableGate
	match     func(BigtableCall) bool
	kind      bigtableFaultKind
	row       func(key []byte) error // of bigtableFaultRefuseRows
	remaining int                    // number of further RPCs that it applies to; negative: no limit
	count     int
	stopped   chan struct{}
	stopOnce  sync.Once
}

// Watch only counts the RPCs that match; see Count.
func (s *BigtableServer) Watch(match func(BigtableCall) bool) *BigtableFault {
	return s.gate.fault(bigtableFaultWatch, 0, match)
}

// Hold keeps RPCs that match from the emulator until Stop delivers them, whether or not their
// senders still wait: the first so many, or all if times is 0.
func (s *BigtableServer) Hold(times int, match func(BigtableCall) bool) *BigtableFault {
	return s.gate.fault(bigtableFaultHold, times, match)
}

// Refuse answers RPCs that match with UNAVAILABLE and does not pass them to the emulator: the first
// so many, or all if times is 0.
func (s *BigtableServer) Refuse(times int, match func(BigtableCall) bool) *BigtableFault {
	return s.gate.fault(bigtableFaultRefuse, times, match)
}

// DropReplies lets the emulator execute RPCs that match and answers them with UNAVAILABLE: the
// first so many, or all if times is 0.
func (s *BigtableServer) DropReplies(times int, match func(BigtableCall) bool) *BigtableFault {
	return s.gate.fault(bigtableFaultDropReply, times, match)
}

// RefuseRows applies MutateRows requests that match in part: a row for which row returns an error
// gets that error's status and is not applied; the other rows are applied. It affects the first so
// many requests, or all if times is 0.
func (s *BigtableServer) RefuseRows(times int, match func(BigtableCall) bool, row func(key []byte) error) *BigtableFault {
	return s.gate.add(&BigtableFault{match: match, kind: bigtableFaultRefuseRows, remaining: times, row: row})
}

// Calls returns the number of RPCs since the start by method, refused RPCs included.
func (s *BigtableServer) Calls() map[string]int {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return maps.Clone(s.gate.counts)
}

func (g *bigtableGate) fault(does bigtableFaultKind, times int, match func(BigtableCall) bool) *BigtableFault {
	return g.add(&BigtableFault{match: match, kind: does, remaining: times})
}

func (g *bigtableGate) add(f *BigtableFault) *BigtableFault {
	f.gate, f.stopped = g, make(chan struct{})
	if f.remaining == 0 {
		f.remaining = -1
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		close(f.stopped)
		f.stopOnce.Do(func() {})
		return f
	}
	g.faults = append(g.faults, f)
	return f
}

// refuseRows adds the rows that the fault refuses to the bad entries of a request.
func (f *BigtableFault) refuseRows(req any, bad map[int]error) {
	all, ok := req.(*bigtablepb.MutateRowsRequest)
	if !ok || f.row == nil {
		return
	}
	for i, entry := range all.Entries {
		if err := f.row(entry.RowKey); err != nil {
			bad[i] = err
		}
	}
}

// match counts an RPC and returns the faults that apply to it.
func (g *bigtableGate) match(call BigtableCall) (met []*BigtableFault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[call.Method]++
	for _, f := range g.faults {
		if f.remaining == 0 || !f.match(call) {
			continue
		}
		f.remaining--
		f.count++
		met = append(met, f)
	}
	g.notify()
	return met
}

// notify wakes the goroutines that wait for a change. The caller holds mu.
func (g *bigtableGate) notify() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// close ends all faults.
func (g *bigtableGate) close() {
	g.mu.Lock()
	g.closed = true
	faults := g.faults
	g.mu.Unlock()
	for _, f := range faults {
		f.Stop()
	}
}

// Count returns the number of RPCs to which the fault was applied so far.
func (f *BigtableFault) Count() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.count
}

// Await blocks until the fault was applied to n RPCs.
func (f *BigtableFault) Await(ctx context.Context, n int) error {
	for {
		f.gate.mu.Lock()
		met, changed := f.count, f.gate.changed
		f.gate.mu.Unlock()
		if met >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Stop ends the fault and delivers the RPCs that it holds. A second Stop does nothing.
func (f *BigtableFault) Stop() {
	f.stopOnce.Do(func() {
		f.gate.mu.Lock()
		for i, other := range f.gate.faults {
			if other == f {
				f.gate.faults = append(f.gate.faults[:i:i], f.gate.faults[i+1:]...)
				break
			}
		}
		f.gate.mu.Unlock()
		close(f.stopped)
	})
}
