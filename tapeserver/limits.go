package tapeserver

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
)

// Limits bounds the resources that clients can make the server hold. A zero field takes its
// default; together the defaults keep a server under 512 MiB. A call over a limit is refused with
// RESOURCE_EXHAUSTED and an ErrorInfo of reason LIMIT, whose metadata names the limit and its
// value. It was not applied.
type Limits struct {
	// HeaderBytes is the largest list of request headers; 16 KiB by default. If a list is larger,
	// its stream is reset or its connection closed before gRPC could reply. gRPC clients are told
	// the limit and do not exceed it.
	HeaderBytes int
	// Connections is the number of open connections; 1,024 by default. Further connections are
	// closed.
	Connections int
	// ConnectionsPerAddress is the number of open connections of one IP address or, of IPv6, of one /64;
	// by default all but an eighth of Connections, so that one host leaves some for the others. Behind a
	// proxy all clients have one address.
	ConnectionsPerAddress int
	// StreamsPerConnection is the number of open calls of one connection, idle subscriptions
	// included; 1,024 by default. Clients are told the limit and wait; a client that ignores it has
	// its stream reset.
	StreamsPerConnection int
	// Streams is the number of open calls of all connections together; 2,048 by default. A call counts
	// until its client has taken the messages that it was sent. One client, on any number of connections,
	// gets all but an eighth; the further limit is named StreamsPerClient.
	Streams int
	// BytesInFlight bounds the messages in memory; 128 MiB by default. A call counts with the
	// largest possible request until its request has arrived, with the largest possible reply until
	// its reply is known, and then with their actual sizes, until the client has taken the reply.
	// So 32 calls that could return the largest record run at a time; a server with more memory can
	// allow more. One connection gets at most three quarters, and one client all but an eighth. A
	// message takes up to three times its size while it is encoded.
	BytesInFlight int64

	// CallsPerSecond bounds the calls that one client begins per second, after a burst of twice as
	// many; 0 is no bound. Clients are principals where the server authenticates, and otherwise, or
	// before that, IP addresses (of IPv6, their /64). A call over the limit waits, for up to QueueTimeout.
	CallsPerSecond int

	// HandshakeTimeout bounds the time from a connection's start to its first settings frame, with the
	// handshake of TLS; 5 seconds by default.
	HandshakeTimeout time.Duration
	// QueueTimeout bounds the time that a call waits for its share of BytesInFlight, or for its turn
	// under CallsPerSecond; 5 seconds by default.
	QueueTimeout time.Duration
	// ReceiveTimeout bounds the time that a request takes to arrive; 10 seconds by default.
	ReceiveTimeout time.Duration
	// SendTimeout bounds the time for which a client may leave a reply, a page of a journal, or what is
	// left of a stream that has ended, unread; 30 seconds by default. After that an open stream is ended,
	// and otherwise the connection is closed. So is one whose client takes nothing at all.
	SendTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	l.HeaderBytes = cmp.Or(l.HeaderBytes, 16<<10)
	l.Connections = cmp.Or(l.Connections, 1024)
	l.ConnectionsPerAddress = cmp.Or(l.ConnectionsPerAddress, clientlimit.Share(l.Connections))
	l.StreamsPerConnection = cmp.Or(l.StreamsPerConnection, 1024)
	l.Streams = cmp.Or(l.Streams, 2048)
	l.BytesInFlight = cmp.Or(l.BytesInFlight, 128<<20)
	l.HandshakeTimeout = cmp.Or(l.HandshakeTimeout, 5*time.Second)
	l.QueueTimeout = cmp.Or(l.QueueTimeout, 5*time.Second)
	l.ReceiveTimeout = cmp.Or(l.ReceiveTimeout, 10*time.Second)
	l.SendTimeout = cmp.Or(l.SendTimeout, 30*time.Second)
	return l
}

// perConnection returns the part of BytesInFlight that one connection can use, which leaves some
// for the others.
func (l Limits) perConnection() int64 { return max(1, l.BytesInFlight/4*3) }

const (
	// windowBytes is the flow-control window of a stream, HTTP/2's minimum: it bounds the bytes of
	// a request that no handler reads yet. A request that is being read may have all of its bytes
	// in flight.
	windowBytes = 64 << 10
	// connectionWindowBytes is the window of a whole connection. It does not bound memory, because
	// gRPC returns it at once; 1 MiB allows 10 MB/s at a round trip of 100 ms.
	connectionWindowBytes = 1 << 20
	// smallMessage is the size up to which a reply no longer counts as bytes once it was handed to the
	// connection: the number of streams bounds these replies.
	smallMessage = 4 << 10
	// stateReply is an upper bound of a reply with the state of a run; labels and scopes are the
	// larger part.
	stateReply = 256 << 10
	// listReply is the memory of a list or a page of a journal while it is made: as the store
	// returns it, and decoded.
	listReply = 2 * runstore.MaxPageBytes
)

// replyBytes returns an upper bound of the reply of a method, before it is known.
func replyBytes(method string) int64 {
	switch method {
	case "BeginRun", "ResumeRun", "EndRun", "GetRun", "Check", "List",
		"SetBudget", "AdmitBudget", "ChargeBudget":
		return stateReply
	case "ListPendingEffects", "ListRunsToRecover", "ListEffectsToDispatch", "ListObligations", "ListUnresolvedObligations",
		"GetSession", "ListSessions", "ListDueTimers", "ListCompactableRuns",
		"ListReactions", "ClaimTasks", "ListTasks",
		"CompactRun": // its reply is small, but it reads the run page by page
		return listReply
	default: // a stored record
		return runstore.MaxRecordValue
	}
}

// limitError returns the error of a call that exceeds the limit name.
func limitError(name string, value any, problem string) error {
	s := status.New(codes.ResourceExhausted, fmt.Sprintf("tape server: %s (limit %s is %v)", problem, name, value))
	text := fmt.Sprint(value)
	if n, ok := value.(int64); ok {
		text = strconv.FormatInt(n, 10)
	}
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: "LIMIT", Domain: errorDomain, Metadata: map[string]string{"limit": name, "value": text},
	})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}
