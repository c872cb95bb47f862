// Package wire writes a presented fence into headers of requests, and reads it from them. HTTP and
// gRPC use the same form.
package wire

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
)

// The names of the headers. gRPC uses them in lower case.
const (
	Token    = "Fencing-Token"
	Resource = "Fencing-Resource"
)

// ErrMissing reports a request without a fence: it has neither header.
var ErrMissing = errors.New("fence: the request presents no fence: it has no " + Token + " and no " + Resource)

// Format returns the values of the two headers. The token is a decimal number. The resource is
// percent-encoded where it is not printable ASCII. Errors: those of [fence.Presented.Validate].
func Format(p fence.Presented) (token, resource string, err error) {
	if err := p.Validate(); err != nil {
		return "", "", err
	}
	var b strings.Builder
	for i := range len(p.Resource) {
		if c := p.Resource[i]; c > ' ' && c < 0x7f && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return strconv.FormatInt(int64(p.Token), 10), b.String(), nil
}

// Parse reads the values of the two headers of a request. Errors: [ErrMissing];
// runstore.ErrInvalid or ErrTooLarge if one header is missing, repeated or malformed.
func Parse(tokens, resources []string) (fence.Presented, error) {
	if len(tokens) == 0 && len(resources) == 0 {
		return fence.Presented{}, ErrMissing
	}
	if len(tokens) != 1 {
		return fence.Presented{}, invalid(Token, "is present %d times instead of once", len(tokens))
	}
	if len(resources) != 1 {
		return fence.Presented{}, invalid(Resource, "is present %d times instead of once", len(resources))
	}
	token, err := strconv.ParseInt(tokens[0], 10, 64)
	if err != nil || strconv.FormatInt(token, 10) != tokens[0] { // "+7" and "007" parse, too
		return fence.Presented{}, invalid(Token, "is not a decimal number of 64 bits")
	}
	resource, err := url.PathUnescape(resources[0])
	if err != nil {
		return fence.Presented{}, invalid(Resource, "is not percent-encoded: %v", err)
	}
	p := fence.Presented{Resource: resource, Token: runstore.Token(token)}
	return p, p.Validate()
}

// Match reports a fence that names another resource than the one that the request touches, as
// ErrInvalid.
func Match(p fence.Presented, touched string) error {
	if p.Resource != touched {
		return invalid(Resource, "names %q, but the request touches %q", p.Resource, touched)
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
