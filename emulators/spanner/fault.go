package spanner

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/emulators"
)

// Call is an RPC as an emulator's client sent it.
type Call struct {
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

// faultKind is the kind of an action.
type faultKind int

const (
	faultWatch faultKind = iota
	faultHold
	faultDelay
	faultAbort
	faultRefuse
	faultDropReply
	faultSwallowReply
	faultBreakStream
)

// action is what a fault does to an RPC.
type action struct {
	kind  faultKind
	delay time.Duration // of faultDelay
	code  codes.Code    // of faultRefuse
	after int           // of faultBreakStream
}

// Watch only counts the RPCs that match; see emulators.Fault.
func (s *Server) Watch(match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultWatch}, 0, match)
}

// Hold keeps RPCs that match from the emulator until Stop delivers them, whether or not their
// senders still wait: the first so many, or all if times is 0. A transaction of a held RPC lives no
// longer than Options.Idle, and other transactions may abort it meanwhile.
func (s *Server) Hold(times int, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultHold}, times, match)
}

// Delay keeps every RPC that matches from the emulator for d, or until Stop. The RPC is then
// delivered, whether or not its sender still waits.
func (s *Server) Delay(d time.Duration, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultDelay, delay: d}, 0, match)
}

// Abort answers RPCs that match, and that begin, belong to or commit read-write transactions, with
// ABORTED: the first so many, or all if times is 0; a nil match matches all. The RPCs are not
// executed, and their transactions are rolled back. A repeated Commit of a committed transaction
// gets the first reply instead, because ABORTED would mean that nothing was changed.
func (s *Server) Abort(times int, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultAbort}, times, readWriteOnly(match))
}

// AbortAtRandom applies Abort to each RPC that matches with a probability of 0 to 1. The same seed
// aborts the same RPCs of those that arrive in the same order.
func (s *Server) AbortAtRandom(probability float64, seed uint64, match func(Call) bool) emulators.Fault {
	random := rand.New(rand.NewPCG(seed, 0)) // the gate calls match under its mutex
	matches := readWriteOnly(match)
	return s.proxy.gate.Add(action{kind: faultAbort}, 0, func(c Call) bool { return matches(c) && random.Float64() < probability })
}

// Refuse answers RPCs that match with an error of this code and does not pass them to the emulator:
// the first so many, or all if times is 0. Clients repeat what is UNAVAILABLE.
func (s *Server) Refuse(times int, code codes.Code, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultRefuse, code: code}, times, match)
}

// DropReplies lets the emulator execute the next times RPCs that match, or all if times is 0, even if
// their senders leave. The proxy answers each with UNAVAILABLE and drops the result. The client
// library then retries a Commit of the same transaction.
func (s *Server) DropReplies(times int, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultDropReply}, times, match)
}

// SwallowReplies lets the emulator execute RPCs that match, even if their senders leave, and sends
// no reply: the first so many, or all if times is 0. The senders wait until their contexts end, or
// until the fault ends and they get UNAVAILABLE.
func (s *Server) SwallowReplies(times int, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultSwallowReply}, times, match)
}

// BreakStreams breaks the replies to RPCs that match with UNAVAILABLE after so many messages, or at
// their end if they have fewer: the first so many RPCs, or all if times is 0. Against the service,
// clients resume a broken stream. The emulator sends all rows in one message without a resume
// token, so clients read all of them again.
func (s *Server) BreakStreams(times, after int, match func(Call) bool) emulators.Fault {
	return s.proxy.gate.Add(action{kind: faultBreakStream, after: after}, times, match)
}

// Calls returns the number of RPCs since the start by method, refused RPCs included.
func (s *Server) Calls() map[string]int { return s.proxy.gate.Counts() }

// readWriteOnly excludes the RPCs that the service never answers with ABORTED.
func readWriteOnly(match func(Call) bool) func(Call) bool {
	return func(c Call) bool {
		return c.ReadWrite && c.Method != "Rollback" && (match == nil || match(c))
	}
}
