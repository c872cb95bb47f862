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
	// FenceRunHeader is needed only in writes to sessions.
	FenceRunHeader = "tape-fence-run-bin"

	GrantOwnerHeader = "tape-grant-owner-bin"
	GrantTokenHeader = "tape-grant-token"
	GrantIDHeader    = "tape-grant-id"
	GrantRunHeader   = "tape-grant-run-bin"
)

// fencedRequest is a request that writes to a run.
type fencedRequest interface{ GetFence() *tapepb.Fence }

// fenceOf returns the fence that a request on run presents; the zero fence if it presents none.
func fenceOf(ctx context.Context, run runstore.RunID, req fencedRequest) (runstore.Fence, error) {
	grant, present, err := presented(ctx, req)
	if err != nil || !present {
		return runstore.Fence{}, err
	}
	return grant.Fence(run)
}

// presented returns the grant that a request presents, in its headers, its field or both. A
// malformed grant is refused: a write must never be less fenced than its sender believes.
func presented(ctx context.Context, req fencedRequest) (g tape.Grant, present bool, err error) {
	header, inHeader, err := headerGrant(ctx)
	f := req.GetFence()
	if err != nil || f == nil {
		return header, inHeader, err
	}
	g = tape.Grant{Run: runstore.RunID(f.GetRunId()), Owner: f.GetOwner(), Token: f.GetToken(), ID: f.GetGrantId()}
	if inHeader && g != header {
		return tape.Grant{}, false, malformed("fence", "the field and the headers %s… present different grants", fencePrefix)
	}
	return g, true, nil
}

// refuseFence refuses a request that presents a fence to an RPC that takes none. What the RPC
// writes belongs to no run, and the sender may believe that the write is fenced.
func refuseFence(ctx context.Context) error {
	_, present, err := headerGrant(ctx)
	if err == nil && present {
		err = malformed(FenceTokenHeader, "is given, and reactions and tasks take no fence")
	}
	return err
}

// headerGrant returns the grant in a request's headers, and whether there is one.
func headerGrant(ctx context.Context) (g tape.Grant, present bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := map[string]string{}
	for key, all := range md {
		switch {
		case !strings.HasPrefix(key, fencePrefix):
			continue
		case key != FenceOwnerHeader && key != FenceTokenHeader && key != FenceGrantHeader && key != FenceRunHeader:
			return g, false, malformed(key, "is no header of a fence; those are %s, %s, %s and %s",
				FenceOwnerHeader, FenceTokenHeader, FenceGrantHeader, FenceRunHeader)
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
	return tape.Grant{
		Run: runstore.RunID(values[FenceRunHeader]), Owner: values[FenceOwnerHeader], Token: token, ID: values[FenceGrantHeader],
	}, true, nil
}

// answerGrant puts a granted lease into the response headers and returns it for the response's
// field; nil if there is no lease.
func answerGrant(ctx context.Context, l runstore.Lease) *tapepb.Grant {
	if l.Token == 0 {
		return nil
	}
	g := tape.GrantOf(l)
	// SetHeader fails only outside of a call or after the headers were sent. The field contains the
	// grant too.
	_ = grpc.SetHeader(ctx, metadata.Pairs(
		GrantOwnerHeader, g.Owner, GrantTokenHeader, strconv.FormatInt(g.Token, 10), GrantIDHeader, g.ID,
		GrantRunHeader, string(g.Run)))
	return &tapepb.Grant{
		Owner: g.Owner, Token: g.Token, GrantId: g.ID, RunId: string(g.Run),
		ExpiresAtMs: millis(l.ExpiresAt), TtlMs: l.TTL.Milliseconds(),
	}
}

func malformed(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
