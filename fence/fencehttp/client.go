package fencehttp

import (
	"errors"
	"net/http"
	"net/textproto"
	"strconv"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// The headers of a fence and of a refusal.
const (
	// TokenHeader and ResourceHeader are the headers of a request that presents a fence. The refusal
	// of a stale token repeats them.
	TokenHeader    = wire.Token
	ResourceHeader = wire.Resource
	// CurrentHeader is the header of a refusal of a stale token: the highest token that the service
	// has seen.
	CurrentHeader = "Fencing-Current"
)

// SetHeaders writes a fence into the headers of a request and replaces one that is there. Errors:
// ErrInvalid, ErrTooLarge; the headers are unchanged then.
func SetHeaders(h http.Header, resource string, token runstore.Token) error {
	t, r, err := wire.Format(fence.Presented{Resource: resource, Token: token})
	if err != nil {
		return err
	}
	h.Set(TokenHeader, t)
	h.Set(ResourceHeader, r)
	return nil
}

// Refused returns the refusal of a stale token, as a [fence.StaleError], if resp is one; else nil.
// It distinguishes the middleware's status 412 from one of the service itself by [CurrentHeader],
// and leaves the body unread.
//
// If a third service refused the server's own fence, the server may forward that refusal. So Refused returns
// nil if the response repeats another fence than that of resp.Request, or if resp.Request has none. A response
// that repeats no fence is a refusal unless its current token is lower than that of the request.
// Where a proxy renames the resource of a request, it restores the caller's name in the refusal. So
// does a service that presents its caller's token to a third service under another name.
//
// After a refusal the caller stops: another holder has replaced it. Every other response says
// nothing about the fence, and nil does not mean that the service checked it.
func Refused(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || resp.Header.Get(CurrentHeader) == "" {
		return nil
	}
	stale := &fence.StaleError{}
	if current, err := strconv.ParseInt(resp.Header.Get(CurrentHeader), 10, 64); err == nil {
		stale.Current = runstore.Token(current)
	}
	if resp.Request == nil {
		return stale
	}
	p, err := parse(resp.Request.Header)
	if err != nil {
		if errors.Is(err, wire.ErrMissing) {
			return nil
		}
		return stale // the server accepts a fence that package wire does not
	}
	repeated, err := parse(resp.Header)
	switch {
	case err == nil && repeated != p:
		return nil
	case err != nil && stale.Current > 0 && stale.Current < p.Token: // equal: the grant was ended
		return nil
	}
	stale.Resource, stale.Presented = p.Resource, p.Token
	return stale
}

// parse reads the fence from the headers of a request or a refusal as the wire has them: net/http sends
// keys that are not canonical, too, and trims values.
func parse(h http.Header) (fence.Presented, error) {
	var tokens, resources []string
	for key, values := range h {
		for _, v := range values {
			switch v = textproto.TrimString(v); http.CanonicalHeaderKey(key) {
			case TokenHeader:
				tokens = append(tokens, v)
			case ResourceHeader:
				resources = append(resources, v)
			}
		}
	}
	return wire.Parse(tokens, resources)
}
