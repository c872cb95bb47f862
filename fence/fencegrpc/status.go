package fencegrpc

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// Domain is the domain of the ErrorInfo of a refusal.
const Domain = "fence.tapestore"

// reasonFenced is the reason in the ErrorInfo of a stale token.
const reasonFenced = "FENCED"

// maxMessage is the maximal length of a status's message, in bytes. A resource takes up to 512, and
// clients in C and Python drop trailers of more than 8 KiB.
const maxMessage = 1024

// afterStart returns the status of a refusal whose handler is running. The handler may have acted, so
// no client may resend the call blindly, as some do after UNAVAILABLE and RESOURCE_EXHAUSTED.
func afterStart(err error) error {
	s := status.Convert(err)
	if c := s.Code(); c != codes.Unavailable && c != codes.ResourceExhausted {
		return err
	}
	p := s.Proto() // a copy
	p.Code = int32(codes.Unknown)
	return status.FromProto(p).Err()
}

// statusOf returns the status of a call that the interceptors refuse. A refusal of a stale token
// states p as the client presented it, which the checker may name otherwise: the client compares.
func statusOf(ctx context.Context, p fence.Presented, err error) error {
	code, text := codes.Unavailable, "the fence could not be checked"
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: "FENCE_UNAVAILABLE"}
	var fenced *runstore.FencedError
	var full *fence.FullError
	switch {
	case errors.Is(err, wire.ErrMissing):
		code, info.Reason, text = codes.InvalidArgument, "FENCE_MISSING", err.Error()
	case errors.As(err, &fenced):
		code, info.Reason, text = codes.FailedPrecondition, reasonFenced, err.Error()
		info.Metadata = map[string]string{
			"resource":  p.Resource,
			"presented": strconv.FormatInt(int64(p.Token), 10),
			"current":   strconv.FormatInt(int64(fenced.Current), 10),
		}
	case errors.Is(err, runstore.ErrInvalid), errors.Is(err, runstore.ErrTooLarge):
		code, info.Reason, text = codes.InvalidArgument, "FENCE_MALFORMED", err.Error()
	case errors.As(err, &full):
		code, info.Reason, text = codes.ResourceExhausted, "FENCE_FULL", full.Error()
	case ctx.Err() != nil: // the client went away, or its deadline has passed
		code = status.FromContextError(ctx.Err()).Code()
	}
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") // drop a partial character at the end
	}
	s := status.New(code, text)
	if detailed, err := s.WithDetails(info); err == nil {
		s = detailed
	}
	return s.Err()
}
