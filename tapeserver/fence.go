package tapeserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The headers that carry a fence and a grant. Names that end in -bin are binary
// by gRPC's rules: an owner may be any text, and headers are ASCII.
const (
	fencePrefix = "tape-fence-"

	FenceOwnerHeader = "tape-fence-owner-bin"
	FenceTokenHeader = "tape-fence-token"
	FenceGrantHeader = "tape-fence-grant"

	GrantOwnerHeader = "tape-grant-owner-bin"
	GrantTokenHeader = "tape-grant-token"
	GrantIDHeader    = "tape-grant-id"
)

// fencedRequest is a request that writes to a run.
type fencedRequest interface{ GetFence() *tapepb.Fence }

// fenceOf returns the fence that a request on run presents, in its headers, its
// field or both; the zero fence when it presents none. What looks like a fence and
// is not one is refused: a write must never be less fenced than its sender thinks.
func fenceOf(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	header, inHeader, err := headerGrant(ctx)
	if err != nil {
		return runstore.Fence{}, err
	}
	grant := header
	if f := req.GetFence(); f != nil {
		grant = tape.Grant{Owner: f.GetOwner(), Token: f.GetToken(), ID: f.GetGrantId()}
		if inHeader && grant != header {
			return runstore.Fence{}, malformed("fence", "the field and the headers %s… present different grants", fencePrefix)
		}
	} else if !inHeader {
		return runstore.Fence{}, nil
	}
	return grant.Fence(run)
}

// headerGrant returns the grant in a request's headers, and whether there is one.
func headerGrant(ctx context.Context) (g tape.Grant, present bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := map[string]string{}
	for key, all := range md {
		switch {
		case !strings.HasPrefix(key, fencePrefix):
			continue
		case key != FenceOwnerHeader && key != FenceTokenHeader && key != FenceGrantHeader:
			return g, false, malformed(key, "is no header of a fence; those are %s, %s and %s",
				FenceOwnerHeader, FenceTokenHeader, FenceGrantHeader)
		case len(all) != 1:
			return g, false, malformed(key, "is given %d times", len(all))
		}
		values[key] = all[0]
	}
	if len(values) == 0 {
		return g, false, nil
	}
	for _, key := range []string{FenceOwnerHeader, FenceTokenHeader, FenceGrantHeader} {
		if values[key] == "" {
			return g, false, malformed(key, "is missing; present all of the grant or nothing")
		}
	}
	token, err := strconv.ParseInt(values[FenceTokenHeader], 10, 64)
	if err != nil {
		return g, false, malformed(FenceTokenHeader, "is not an integer")
	}
	return tape.Grant{Owner: values[FenceOwnerHeader], Token: token, ID: values[FenceGrantHeader]}, true, nil
}

// answerGrant puts a granted lease into the response headers and returns it for
// the response's field. No lease is no grant.
func answerGrant(ctx context.Context, l runstore.Lease) *tapepb.Grant {
	if l.Token == 0 {
		return nil
	}
	g := tape.GrantOf(l)
	// It fails only outside of a call or after the headers were sent; the field
	// carries the grant too.
	_ = grpc.SetHeader(ctx, metadata.Pairs(
		GrantOwnerHeader, g.Owner, GrantTokenHeader, strconv.FormatInt(g.Token, 10), GrantIDHeader, g.ID))
	return &tapepb.Grant{Owner: g.Owner, Token: g.Token, GrantId: g.ID}
}

func malformed(field, format string, args ...any) error {
	return &runstore.LimitError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
