package main

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// dial connects to the server. Nothing is resolved and no proxy is asked: the
// address is one of this host.
func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
}

// fenceOf returns what a write presents under a grant.
func fenceOf(g *tapepb.Grant) *tapepb.Fence {
	return &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId()}
}

// wireError is a call that failed.
type wireError struct {
	call string
	err  error
}

func callError(call string, err error) error {
	if err == nil {
		return nil
	}
	return &wireError{call, err}
}

func (e *wireError) Error() string { return fmt.Sprintf("%s: %v", e.call, e.err) }
func (e *wireError) Unwrap() error { return e.err }

// refusal returns what the server says about a refused call; nil if it says
// nothing.
func refusal(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "tapestore" {
			return info
		}
	}
	return nil
}

// isFenced reports whether err tells a worker to stop: a later grant was made, and
// nothing that it sends can succeed any more.
func isFenced(err error) bool {
	var failed *wireError
	return errors.As(err, &failed) && refusal(failed.err).GetReason() == "FENCED"
}
