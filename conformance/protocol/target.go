package protocol

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Target is a server under test. Only Address is required; cases that need another field that is
// unset are not applicable.
type Target struct {
	// Address is the server's gRPC address, as grpc.NewClient takes it.
	Address string
	// Credentials are the transport credentials of the connections; nil means plaintext.
	Credentials credentials.TransportCredentials
	// Probes is the base URL of the server's HTTP probes, such as http://localhost:7879.
	Probes string
	// Costly reports that each call takes milliseconds of this machine's CPU. Cases then repeat
	// less.
	Costly bool
	// Like names the engine whose statements the server's store shares; "" if there is none. In a
	// quick run, Run and RunCases then run only the first case of each group here, because the
	// other cases run on that engine.
	Like string

	// Private starts a server of the same kind on an empty store, for one case. restart stops the
	// server without waiting for its calls, and starts it again on the same store and at the same
	// address.
	Private func(t T) (address string, restart func())
	// Beside starts another server on the store of the one at Address, for one case.
	Beside func(t T) (address string)
	// Second starts another process that serves the store memory without an address of probes. The
	// default one is in use.
	Second func(t T) (address string)
	// Replicas starts n servers of the same kind on one empty store. They run until the end of the
	// case. Their matchers' leases last a few seconds.
	Replicas func(t T, n int) []Replica
}

// Mode is a server's treatment of a driver's write that presents no fence.
type Mode string

// The modes of a server.
const (
	// ModeNone: the server does not support fences.
	ModeNone Mode = "none"
	// ModePresented: the server accepts such a write, and checks every fence that is presented.
	ModePresented Mode = "presented"
	// ModeConnection: the server applies the write under the grant that it returned on the same
	// connection, and refuses the write on a connection without a grant.
	ModeConnection Mode = "connection"
	// ModeRequired: the server refuses the write.
	ModeRequired Mode = "required"
)

// Server is a server under test with the capabilities that Inspect found.
type Server struct {
	target Target
	called *methods // methods called by the case that holds this copy; see newEnv

	// Mode is the server's treatment of a driver's write without a fence.
	Mode Mode
	// Grants reports that BeginRun returns a grant.
	Grants bool
	// Generations reports that claims have generations.
	Generations bool
	// BusinessKeys reports that effects can have business keys.
	BusinessKeys bool
	// Values reports that the server serves values.
	Values bool
	// Feeds reports that the server serves the feed of all runs.
	Feeds bool
	// Reactions reports that the server serves reactions and tasks.
	Reactions bool
}

// Inspect determines the capabilities of a server by calls on two connections.
//
// Errors: those of calls that every server must answer.
func Inspect(ctx context.Context, target Target) (*Server, error) {
	s := &Server{target: target, Mode: ModeNone}
	own, err := target.dial(target.Address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	other, err := target.dial(target.Address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	c, name := tapepb.NewTapeClient(own), unique()
	begun, err := c.BeginRun(ctx, &tapepb.BeginRunRequest{
		AppName: "inspect", UserId: name, SessionId: name, InvocationId: name, LeaseOwner: "inspect",
	}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("BeginRun: %w", err)
	}
	run, grant := begun.GetRunId(), begun.GetGrant()
	fence := &tapepb.Fence{Owner: grant.GetOwner(), Token: grant.GetToken(), GrantId: grant.GetGrantId(), RunId: grant.GetRunId()}
	if s.Grants = grant != nil; s.Grants {
		if s.Mode, err = modeOf(ctx, c, tapepb.NewTapeClient(other), run); err != nil {
			return nil, err
		}
	} else {
		fence = nil
	}
	effect, err := c.BeginEffect(ctx, &tapepb.BeginEffectRequest{
		RunId: run, CustomKey: "claimed", Connector: name, DispatchMode: outbox, Fence: fence,
	})
	if err != nil {
		return nil, fmt.Errorf("BeginEffect: %w", err)
	}
	claim, err := c.ClaimEffectDispatch(ctx, &tapepb.ClaimEffectDispatchRequest{RunId: run, IdempotencyKey: effect.GetIdempotencyKey(), Claimer: "inspect"})
	s.Generations = err == nil && claim.GetGeneration() > 0
	_, err = c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: run, CustomKey: "business", Connector: name, BusinessKey: name, Fence: fence})
	s.BusinessKeys = reason(err) != "UNSUPPORTED"
	_, err = c.GetValue(ctx, &tapepb.GetValueRequest{Namespace: name, Key: name})
	s.Values = status.Code(err) != codes.Unimplemented
	s.Feeds = hasFeeds(ctx, c, name)
	_, err = c.ListReactions(ctx, &tapepb.ListReactionsRequest{SubjectPattern: name})
	s.Reactions = status.Code(err) != codes.Unimplemented
	_, err = c.EndRun(ctx, &tapepb.EndRunRequest{RunId: run, Status: cancelled, Fence: fence})
	return s, errors.Join(err)
}

// hasFeeds reports whether the feed shows the first entry of a run of the given app.
func hasFeeds(ctx context.Context, c tapepb.TapeClient, app string) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.SubscribeBySubject(ctx, &tapepb.SubscribeBySubjectRequest{SubjectPattern: "/tape/run/running/inspect/" + app + "/**"})
	if err == nil {
		_, err = stream.Recv()
	}
	return status.Code(err) != codes.Unimplemented
}

// modeOf determines the mode by two writes without a fence: one on the connection that holds the
// grant, and one on another connection.
func modeOf(ctx context.Context, own, other tapepb.TapeClient, run string) (Mode, error) {
	write := &tapepb.RecordDecisionRequest{RunId: run}
	if _, err := other.RecordDecision(ctx, write); err == nil {
		return ModePresented, nil
	} else if reason(err) != "FENCE_REQUIRED" {
		return "", fmt.Errorf("RecordDecision: %w", err)
	}
	if _, err := own.RecordDecision(ctx, write); err == nil {
		return ModeConnection, nil
	} else if reason(err) != "FENCE_REQUIRED" {
		return "", fmt.Errorf("RecordDecision: %w", err)
	}
	return ModeRequired, nil
}

func (t Target) dial(address string) (*grpc.ClientConn, error) {
	creds := t.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return grpc.NewClient(address, grpc.WithTransportCredentials(creds))
}

// ParseAddress returns the target for a server's address. HOST:PORT, tape://HOST:PORT and
// grpc://HOST:PORT mean plaintext; tapes://HOST[:PORT] and grpcs://HOST[:PORT] mean TLS, on port
// 443 by default.
func ParseAddress(address string) (Target, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "tape", address
	}
	target := Target{Address: rest}
	switch scheme {
	case "tape", "grpc":
	case "tapes", "grpcs":
		target.Credentials = credentials.NewTLS(nil)
		if _, _, err := net.SplitHostPort(rest); err != nil {
			target.Address = rest + ":443"
		}
	default:
		return Target{}, fmt.Errorf("the address has the scheme %q; it is HOST:PORT, tape://HOST:PORT or tapes://HOST:PORT", scheme)
	}
	host, port, err := net.SplitHostPort(target.Address)
	if err != nil {
		return Target{}, fmt.Errorf("the address is not HOST:PORT: %w", err)
	}
	if host == "" || strings.ContainsAny(host, "/?#@[] ") {
		return Target{}, fmt.Errorf("the address is not HOST:PORT: its host is %q", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return Target{}, fmt.Errorf("the address is not HOST:PORT: the port is %q; it is a number from 1 to 65535", port)
	}
	return target, nil
}

// unique returns a random name that no other call returns.
func unique() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// reason returns the reason of a status's ErrorInfo.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
