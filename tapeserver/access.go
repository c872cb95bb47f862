package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Every call is authenticated before its request is read. Its role is checked then too, and its
// tenant once the request is known. Invariants:
//
//  1. A method without an entry in accesses is refused. A test compares the entries with the
//     descriptors.
//  2. What a principal that is limited to tenants may do follows from the method's subject; see
//     tenants.go.
//  3. A stream ends when its credentials do: they are checked again while it is open.
//  4. A refusal contains no credential.

var (
	// errUnauthenticated and errPermission are the kinds of refusals, and errUnchecked is that of
	// credentials that cannot be checked at present; see statusTable.
	errUnauthenticated = errors.New("unauthenticated")
	errPermission      = errors.New("permission denied")
	errUnchecked       = errors.New("not authenticated")
)

// authenticate checks the credentials and the role of a call, and returns the client's name for
// limits and the call's context, which has the principal.
func (s *Server) authenticate(ctx context.Context) (client string, _ context.Context, err error) {
	method, _ := grpc.Method(ctx)
	address := clientAddress(ctx)
	client = clientlimit.Network(address)
	var p auth.Principal
	if s.opts.Auth == nil || method == probe {
		err = s.checkCertificate(ctx)
	} else if p, err = s.principal(ctx, method); err == nil {
		ctx = auth.NewContext(ctx, p)
		client = clientOf(ctx)
	}
	if err != nil {
		s.refused.log(s.opts.Logger, method, address, p.Name, err)
		return client, ctx, accessStatus(method, err)
	}
	return client, ctx, nil
}

// clientOf returns the name for limits of an authenticated call's client.
func clientOf(ctx context.Context) string {
	if p, ok := auth.FromContext(ctx); ok {
		return "principal " + p.Name
	}
	return clientlimit.Network(clientAddress(ctx))
}

// principal returns the principal of a call, and an error unless it may call the method.
func (s *Server) principal(ctx context.Context, method string) (auth.Principal, error) {
	if err := s.checkCertificate(ctx); err != nil {
		return auth.Principal{}, err
	}
	given := auth.Credentials{Headers: metadata.ValueFromIncomingContext(ctx, "authorization")}
	if info, ok := tlsOf(ctx); ok && s.opts.TLS != nil && s.opts.TLS.Mutual() && len(info.State.VerifiedChains) > 0 {
		given.Certificate = info.State.PeerCertificates[0]
	}
	p, err := s.opts.Auth.Authenticate(ctx, given)
	switch {
	case errors.Is(err, auth.ErrUnauthenticated):
		return p, fmt.Errorf("%w%s", errUnauthenticated, strings.TrimPrefix(err.Error(), auth.ErrUnauthenticated.Error()))
	case err != nil:
		return p, fmt.Errorf("%w: %w", errUnchecked, err)
	}
	need, ok := accessOf(method)
	switch {
	case !ok:
		return p, fmt.Errorf("%w: no role may call %s", errPermission, path.Base(method))
	case p.Role < need.role:
		return p, fmt.Errorf("%w: %s needs the role %v, and %s has the role %v", errPermission, path.Base(method), need.role, p.Name, p.Role)
	case p.Limited() && need.subject == shared:
		return p, fmt.Errorf("%w: %s is limited to tenants, and may not call %s: %s", errPermission, p.Name, path.Base(method), need.why)
	}
	return p, nil
}

// checkCertificate checks the certificate of a call's connection against the files as they are now.
func (s *Server) checkCertificate(ctx context.Context) error {
	if s.opts.TLS == nil {
		return nil
	}
	info, ok := tlsOf(ctx)
	if !ok {
		return fmt.Errorf("%w: the connection has no TLS", errUnauthenticated)
	}
	if err := s.opts.TLS.CheckClient(info.State); err != nil {
		return fmt.Errorf("%w: %w", errUnauthenticated, err)
	}
	return nil
}

func tlsOf(ctx context.Context) (credentials.TLSInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return credentials.TLSInfo{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return info, ok
}

// accessStatus returns the status of a refusal. Clients act on every other status of BeginEffect than
// PERMISSION_DENIED; see beginEffectStatus.
func accessStatus(method string, err error) error {
	if method == tapepb.Tape_BeginEffect_FullMethodName {
		return beginEffectStatus(err)
	}
	return statusOf(err)
}

// keepChecking ends a stream when its credentials no longer admit it: the token or the certificate
// has expired, has been withdrawn or revoked, or the principal has lost the role or the tenant. It
// returns when the call ends. A check that is not possible at present ends nothing.
func (s *Server) keepChecking(c *call) {
	if s.opts.Auth == nil && (s.opts.TLS == nil || !s.opts.TLS.Mutual()) {
		return
	}
	timer := time.NewTimer(s.opts.AuthInterval)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
		if err := s.checkAgain(c); err != nil {
			c.cancel(accessEnded{err})
			return
		}
		timer.Reset(s.opts.AuthInterval)
	}
}

func (s *Server) checkAgain(c *call) error {
	method, _ := grpc.Method(c.ctx)
	if s.opts.Auth == nil {
		if err := s.checkCertificate(c.ctx); err != nil {
			return accessStatus(method, err)
		}
		return nil
	}
	p, err := s.principal(c.ctx, method)
	if err == nil {
		err = c.admittedBy(p, method)
	}
	if errors.Is(err, errUnauthenticated) || errors.Is(err, errPermission) {
		s.refused.log(s.opts.Logger, method, clientAddress(c.ctx), p.Name, err)
		return accessStatus(method, err)
	}
	return nil
}

// accessEnded is the cancellation cause of a stream whose credentials have ended.
type accessEnded struct{ status error }

func (e accessEnded) Error() string { return e.status.Error() }
