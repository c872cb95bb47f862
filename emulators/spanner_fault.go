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

// SpannerCall is an RPC that an emulator got, as its client sent it.
type SpannerCall struct {
	Method   string // "Commit", "ExecuteStreamingSql", "UpdateDatabaseDdl"
	Database string // its full name, "projects/…/instances/…/databases/…"; "" if the RPC is about none
	Metadata metadata.MD
	// Request is what the client asks; nil for services other than those of the data
	// and of the databases. It is not to be changed.
	Request proto.Message
	// ReadWrite says that the RPC begins, belongs to, commits or rolls back a
	// read-write transaction.
	ReadWrite bool
}

// What a fault does to an RPC.
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

// SpannerFault is what a test does to some of the RPCs of an emulator, from when it is
// made until its Stop.
type SpannerFault struct {
	gate      *spannerGate
	match     func(SpannerCall) bool
	kind      spannerFaultKind
	remaining int // how many more RPCs it is for; below 0 it has no limit
	count     int
	stopped   chan struct{}
	stopOnce  sync.Once

	chance func() bool   // whether it is for this one; nil is always
	delay  time.Duration // of spannerFaultDelay
	code   codes.Code    // of spannerFaultRefuse
	after  int           // of spannerFaultBreakStream
}

// Watch only counts: Count tells how many RPCs matched.
func (s *SpannerServer) Watch(match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultWatch, match: match}, 0)
}

// Hold keeps RPCs that match before the emulator, until Stop delivers them, whether or
// not their senders still live or wait: the first so many, or all if times is 0. A
// transaction to which one belongs does not live longer for it, see
// SpannerOptions.Idle, and may be aborted by others that come in the meantime.
func (s *SpannerServer) Hold(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultHold, match: match}, times)
}

// Delay keeps every RPC that matches before the emulator for d, or until Stop. It is
// then delivered, whether or not its sender still lives or waits.
func (s *SpannerServer) Delay(d time.Duration, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultDelay, match: match, delay: d}, 0)
}

// Abort answers RPCs that match, and belong to read-write transactions or begin or
// commit them, with ABORTED: the first so many, or all if times is 0; nil matches all.
// They are not carried out, and their transactions are rolled back. A Commit that repeats one that
// was carried out is answered as that one: ABORTED would say that nothing was changed.
func (s *SpannerServer) Abort(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultAbort, match: readWriteOnly(match)}, times)
}

// AbortAtRandom does what Abort does to RPCs that match, to each with a probability of 0
// to 1. The same seed aborts the same ones of those that come in the same order.
func (s *SpannerServer) AbortAtRandom(probability float64, seed uint64, match func(SpannerCall) bool) *SpannerFault {
	random := rand.New(rand.NewPCG(seed, 0)) // the gate's lock guards it
	return s.proxy.gate.fault(&SpannerFault{
		kind: spannerFaultAbort, match: readWriteOnly(match),
		chance: func() bool { return random.Float64() < probability },
	}, 0)
}

// Refuse answers RPCs that match with an error of this code before the emulator hears of
// them: the first so many, or all if times is 0. Clients repeat what is UNAVAILABLE.
func (s *SpannerServer) Refuse(times int, code codes.Code, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultRefuse, match: match, code: code}, times)
}

// DropReplies lets the emulator carry out RPCs that match, also when their senders leave,
// and answers UNAVAILABLE whatever came of them: the first so many, or all if times is
// 0. Clients repeat a Commit by themselves then, for the same transaction.
func (s *SpannerServer) DropReplies(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultDropReply, match: match}, times)
}

// SwallowReplies lets the emulator carry out RPCs that match, also when their senders
// leave, and gives no answer at all: the first so many, or all if times is 0. They wait
// until their contexts end, or the fault does, which is UNAVAILABLE to them.
func (s *SpannerServer) SwallowReplies(times int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultSwallowReply, match: match}, times)
}

// BreakStreams breaks the answers to RPCs that match with UNAVAILABLE after so many
// messages, or at their end if they have no more: the first so many RPCs, or all if
// times is 0. Clients go on where a stream broke. The emulator gives all rows in one
// message, and nothing to go on from: they ask again, for all of them.
func (s *SpannerServer) BreakStreams(times, after int, match func(SpannerCall) bool) *SpannerFault {
	return s.proxy.gate.fault(&SpannerFault{kind: spannerFaultBreakStream, match: match, after: after}, times)
}

// Calls counts the RPCs since the start by method, refused ones included.
func (s *SpannerServer) Calls() map[string]int {
	s.proxy.gate.mu.Lock()
	defer s.proxy.gate.mu.Unlock()
	return maps.Clone(s.proxy.gate.counts)
}

// readWriteOnly leaves out what the service never answers with ABORTED.
func readWriteOnly(match func(SpannerCall) bool) func(SpannerCall) bool {
	return func(c SpannerCall) bool {
		return c.ReadWrite && c.Method != "Rollback" && (match == nil || match(c))
	}
}

// spannerGate stands before an emulator: it counts, and tells what faults do to what
// comes.
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

// meet counts an RPC, and returns the faults that it meets.
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

// Count is how many RPCs the fault was done to so far.
func (f *SpannerFault) Count() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.count
}

// Await waits until the fault was done to n RPCs.
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

// Stop ends the fault, and delivers what it held. Ending again does nothing.
func (f *SpannerFault) Stop() {
	f.stopOnce.Do(func() {
		f.gate.mu.Lock()
		f.gate.faults = slices.DeleteFunc(slices.Clone(f.gate.faults), func(other *SpannerFault) bool { return other == f })
		f.gate.mu.Unlock()
		close(f.stopped)
	})
}
