package emulators

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// SpannerCall is an RPC as an emulator's client sent it.
type SpannerCall struct {
	Method   string // "Commit", "ExecuteStreamingSql", "UpdateDatabaseDdl"
	Database string // full name, "projects/…/instances/…/databases/…"; "" if the RPC concerns no database
	Metadata metadata.MD
	// Request is the decoded request; nil for services other than data and database administration.
	// It must not be changed.
	Request proto.Message
	// ReadWrite reports whether the RPC begins, belongs to, commits or rolls back a read-write
	// transaction.
	ReadWrite bool
}

// spannerFaultKind is what a fault does to an RPC.
type spannerFaultKind int

const (
	spannerFaultWatch spannerFaultKind = iota
	spannerFaultHold
	spannerFaultDelay
	spannerFaultAbort
	spannerFaultRefuse
	spannerFaultDropReply
	spannerFaultSwallowReply
	spannerFaultBreakStream
)

// SpannerFault is a fault that is applied to some RPCs of an emulator, from its creation to its
// Stop.
type SpannerFault struct {
	gate      *spannerGate
	match     func(SpannerCall) bool
	kind      spannerFaultKind
	remaining int // number of further RPCs that it applies to; negative: no limit
	count     int
	stopped   chan struct{}
	stopOnce  sync.Once

	chance func() bool   // whether it applies to an RPC that matches; nil means always
	delay  time.Duration // of spannerFaultDelay
	code   codes.Code    // of spannerFaultRefuse
	after  int           // of spannerFaultBreakStream
}

// Watch only counts the RPCs that match; see Count.
func (s *SpannerServer) Watch(match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultWatch, match: match}, 0)
}

// Hold keeps RPCs that match from the emulator until Stop delivers them, whether or not their
// senders still wait: the first so many, or all if times is 0. A transaction of a held RPC lives no
// longer than SpannerOptions.Idle, and other transactions may abort it meanwhile.
func (s *SpannerServer) Hold(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultHold, match: match}, times)
}

// Delay keeps every RPC that matches from the emulator for d, or until Stop. The RPC is then
// delivered, whether or not its sender still waits.
func (s *SpannerServer) Delay(d time.Duration, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultDelay, match: match, delay: d}, 0)
}

// Abort answers RPCs that match, and that begin, belong to or commit read-write transactions, with
// ABORTED: the first so many, or all if times is 0; a nil match matches all. The RPCs are not
// executed, and their transactions are rolled back. A repeated Commit of a committed transaction
// gets the first reply instead, because ABORTED would mean that nothing was changed.
func (s *SpannerServer) Abort(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultAbort, match: readWriteOnly(match)}, times)
}

// AbortAtRandom applies Abort to each RPC that matches with a probability of 0 to 1. The same seed
// aborts the same RPCs of those that arrive in the same order.
func (s *SpannerServer) AbortAtRandom(probability float64, seed uint64, match func(SpannerCall) bool) *SpannerFault {
	random := rand.New(rand.NewPCG(seed, 0)) // guarded by the gate's mutex
	return s.proxy.gate.fault(&SpannerFault{
		kind: spannerFaultAbort, match: readWriteOnly(match),
		chance: func() bool { return random.Float64() < probability },
	}, 0)
}

// Refuse answers RPCs that match with an error of this code and does not pass them to the emulator:
// the first so many, or all if times is 0. Clients repeat what is UNAVAILABLE.
func (s *SpannerServer) Refuse(times int, code codes.Code, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultRefuse, match: match, code: code}, times)
}

// DropReplies lets the emulator execute RPCs that match, even if their senders leave, and answers
// UNAVAILABLE whatever the result: the first so many, or all if times is 0. A client library then
// repeats a Commit by itself, for the same transaction.
func (s *SpannerServer) DropReplies(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultDropReply, match: match}, times)
}

// SwallowReplies lets the emulator execute RPCs that match, even if their senders leave, and sends
// no reply: the first so many, or all if times is 0. The senders wait until their contexts end, or
// until the fault ends and they get UNAVAILABLE.
func (s *SpannerServer) SwallowReplies(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultSwallowReply, match: match}, times)
}

// BreakStreams breaks the replies to RPCs that match with UNAVAILABLE after so many messages, or at
// their end if they have fewer: the first so many RPCs, or all if times is 0. Against the service,
// clients resume a broken stream. The emulator sends all rows in one message without a resume
// token, so clients read all of them again.
func (s *SpannerServer) BreakStreams(times, after int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultBreakStream, match: match, after: after}, times)
}

// Calls returns the number of RPCs since the start by method, refused RPCs included.
func (s *SpannerServer) Calls() map[string]int {
	s.proxy.gate.mu.Lock()
	defer s.proxy.gate.mu.Unlock()
	return maps.Clone(s.proxy.gate.counts)
}

// readWriteOnly excludes the RPCs that the service never answers with ABORTED.
func readWriteOnly(match func(SpannerCall) bool) func(SpannerCall) bool {
	return func(c SpannerCall) bool {
		return c.ReadWrite && c.Method != "Rollback" && (match == nil || match(c))
	}
}

// spannerGate counts the RPCs to an emulator and selects the faults that apply to each.
type spannerGate struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the counts or faults change
	closed  bool
	counts  map[string]int
	faults  []*SpannerFault
}

func newSpannerGate() *spannerGate {
	return &spannerGate{changed: make(chan struct{}), counts: map[string]int{}}
}

func (g *spannerGate) fault(f *SpannerFault, times int) *SpannerFault {
	f.gate, f.remaining, f.stopped = g, times, make(chan struct{})
	if times == 0 {
		f.remaining = -1
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		f.stopOnce.Do(func() { close(f.stopped) })
		return f
	}
	g.faults = append(g.faults, f)
	return f
}

// match counts an RPC and returns the faults that apply to it.
func (g *spannerGate) match(call SpannerCall) (met []*SpannerFault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[call.Method]++
	for _, f := range g.faults {
		if f.remaining == 0 || f.match != nil && !f.match(call) || f.chance != nil && !f.chance() {
			continue
		}
		f.remaining--
		f.count++
		met = append(met, f)
	}
	close(g.changed)
	g.changed = make(chan struct{})
	return met
}

// close ends all faults.
func (g *spannerGate) close() {
	g.mu.Lock()
	g.closed = true
	faults := g.faults
	g.mu.Unlock()
	for _, f := range faults {
		f.Stop()
	}
}

// Count returns the number of RPCs to which the fault was applied so far.
func (f *SpannerFault) Count() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.count
}

// Await blocks until the fault was applied to n RPCs.
func (f *SpannerFault) Await(ctx context.Context, n int) error {
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
func (f *SpannerFault) Stop() {
	f.stopOnce.Do(func() {
		f.gate.mu.Lock()
		f.gate.faults = slices.DeleteFunc(slices.Clone(f.gate.faults), func(other *SpannerFault) bool { return other == f })
		f.gate.mu.Unlock()
		close(f.stopped)
	})
}
