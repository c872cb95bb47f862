package fencegrpc

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// The metadata keys of a fence.
const (
	TokenKey    = "fencing-token"
	ResourceKey = "fencing-resource"
)

type outgoingKey struct{}

// WithFence returns a context whose calls present the fence, through the client interceptors of this
// package. The fence that a server has checked ([fence.FromContext]) is another one and is not
// passed on automatically: the next service may guard other resources.
func WithFence(ctx context.Context, resource string, token runstore.Token) context.Context {
	return context.WithValue(ctx, outgoingKey{}, fence.Presented{Resource: resource, Token: token})
}

// outgoing writes the fence of [WithFence], if any, into the metadata of a call.
func outgoing(ctx context.Context) (context.Context, error) {
	p, ok := ctx.Value(outgoingKey{}).(fence.Presented)
	if !ok {
		return ctx, nil
	}
	token, resource, err := wire.Format(p)
	if err != nil {
		return ctx, err
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(TokenKey, token)
	md.Set(ResourceKey, resource)
	return metadata.NewOutgoingContext(ctx, md), nil
}

// UnaryClientInterceptor presents the fence of [WithFence] with each unary call, and returns the
// errors of [Refused] for a refusal of this fence, or of one that the caller wrote into the metadata
// of the call. If a third service refused the server's own fence, the server may forward that refusal: its
// status is returned as it is, because it does not mean that the caller was replaced. So is every refusal of a
// call without a fence. A malformed fence fails with ErrInvalid or ErrTooLarge before the call.
//
// Chain it behind every interceptor that changes the fence: it does not see one that is written or
// renamed later, or by PerRPCCredentials. Call [Refused] for such calls. Where a proxy renames the
// resource of a call, it restores the caller's name in the refusal, and so does a service that presents
// its caller's token to a third service under another name.
func UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, err := outgoing(ctx)
		if err != nil {
			return err
		}
		return refused(ctx, invoker(ctx, method, req, reply, cc, opts...))
	}
}

// StreamClientInterceptor is [UnaryClientInterceptor] for streams, whose RecvMsg returns the refusal.
func StreamClientInterceptor() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, err := outgoing(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, refused(ctx, err)
		}
		return clientStream{stream, ctx}, nil
	}
}

type clientStream struct {
	grpc.ClientStream
	ctx context.Context // has the fence in its metadata
}

// RecvMsg implements grpc.ClientStream.
func (s clientStream) RecvMsg(m any) error { return refused(s.ctx, s.ClientStream.RecvMsg(m)) }

// refused is [Refused] for the error of a call with the outgoing context ctx. It returns the refusal
// of a fence other than the call's as it is.
func refused(ctx context.Context, err error) error {
	converted := Refused(err)
	var r *refusedError
	if errors.As(converted, &r) && !presents(ctx, r.stale) {
		return err
	}
	return converted
}

// presents reports whether a call with the outgoing context ctx may have presented the fence that
// was refused. A server need not state the token or the resource, and may accept a fence that
// package wire does not.
func presents(ctx context.Context, stale *fence.StaleError) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	p, err := wire.Parse(md.Get(TokenKey), md.Get(ResourceKey))
	if err != nil {
		return !errors.Is(err, wire.ErrMissing)
	}
	return (stale.Presented == 0 || stale.Presented == p.Token) && (stale.Resource == "" || stale.Resource == p.Resource)
}

// Refused makes the status of a refused stale token match runstore.ErrFenced, with a
// [fence.StaleError] in its chain; it still is the status that the server returned. Every other
// error is returned as it is.
//
// The interceptors call it. Without them, compare the StaleError with the fence that the call
// presented: if a third service refused the server's own fence, the server may forward that refusal.
func Refused(err error) error {
	var already *refusedError
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != codes.FailedPrecondition || errors.As(err, &already) {
		return err
	}
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain || info.GetReason() != reasonFenced {
			continue
		}
		facts := info.GetMetadata()
		return &refusedError{err: err, status: s, stale: &fence.StaleError{
			Resource: facts["resource"], Presented: parse(facts["presented"]), Current: parse(facts["current"]),
		}}
	}
	return err
}

// parse reads a token; it returns 0 if there is none.
func parse(text string) runstore.Token {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return runstore.Token(n)
}

// refusedError is the status of a refusal with its details as an error.
type refusedError struct {
	err    error
	status *status.Status
	stale  *fence.StaleError
}

// Error implements error.
func (e *refusedError) Error() string { return e.err.Error() }

// Unwrap returns the refusal and the error of the call.
func (e *refusedError) Unwrap() []error { return []error{e.stale, e.err} }

// GRPCStatus returns the status that the server returned.
func (e *refusedError) GRPCStatus() *status.Status { return e.status }
