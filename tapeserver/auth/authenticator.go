package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/tapestore/tapestore/internal/reload"
)

// Options configures a Checker. At least one of File and Issuer is needed.
type Options struct {
	// File is the path of the file of principals; empty for none.
	File string
	// Issuer is an OpenID Connect issuer; nil for none.
	Issuer *Issuer
	// Certificates reports whether clients present certificates. Without them, a principal that only a
	// certificate would identify is a fault of the file, as one that needs an Issuer is without one.
	Certificates bool
}

// Checker is the Authenticator of a file of principals and an issuer.
type Checker struct {
	file   *reload.Value[*Principals] // nil for none
	issuer *verifier                  // nil for none
}

// New returns a Checker. It reads the file, and makes no request to the issuer before a call presents
// a token of it.
//
// Errors: every fault of the options and the file, joined.
func New(opts Options) (*Checker, error) {
	c := &Checker{}
	if opts.File == "" && opts.Issuer == nil {
		return nil, errors.New("auth: there is neither a file of principals nor an issuer")
	}
	var faults []error
	if opts.Issuer != nil {
		var err error
		if c.issuer, err = newVerifier(*opts.Issuer); err != nil {
			faults = append(faults, err)
		}
	}
	if opts.File != "" {
		var err error
		if c.file, err = reload.Load([]string{opts.File}, opts.parse); err != nil {
			faults = append(faults, err)
		}
	}
	return c, errors.Join(faults...)
}

// parse reads the file. A credential that no call could present is a fault; flags are those of tapestore
// serve.
func (o Options) parse(files [][]byte) (*Principals, error) {
	p, err := ParsePrincipals(o.File, files[0])
	if err != nil {
		return nil, err
	}
	var faults []error
	refuse := func(kind, flag string) {
		if at, ok := p.first[kind]; ok {
			faults = append(faults, fmt.Errorf("%s:%d: %s has %s: give --%s", o.File, at.line, at.name, kind, flag))
		}
	}
	if !o.Certificates {
		refuse(byCertificate, "tls-client-ca")
	}
	if o.Issuer == nil {
		refuse(bySubject, "oidc-issuer")
		refuse(byEmail, "oidc-issuer")
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return p, nil
}

// Reload looks at the file at once. It reports whether the file has changed; after an error the former
// principals stay in use.
func (c *Checker) Reload() (changed bool, err error) {
	if c.file == nil {
		return false, nil
	}
	return c.file.Check()
}

// Watch follows the file until ctx ends, and logs each change and each fault once.
func (c *Checker) Watch(ctx context.Context, log *slog.Logger) {
	if c.file != nil {
		c.file.Watch(ctx, reload.Interval, "principals", log)
	}
}

// Authenticate returns the principal that presents the credentials.
func (c *Checker) Authenticate(ctx context.Context, given Credentials) (Principal, error) {
	var file *Principals
	if c.file != nil {
		file = c.file.Get()
	}
	if len(given.Headers) > 0 {
		text, err := bearer(given.Headers)
		if err != nil {
			return Principal{}, err
		}
		return c.byToken(ctx, file, text)
	}
	switch {
	case given.Certificate == nil:
		return Principal{}, refuse("the call has no authorization header; send authorization: Bearer TOKEN")
	case file != nil:
		if p, ok := file.byCertificate(given.Certificate); ok {
			return p, nil
		}
	}
	return Principal{}, refuse("the subject of the client's certificate belongs to no principal")
}

func (c *Checker) byToken(ctx context.Context, file *Principals, text string) (Principal, error) {
	if file != nil {
		if p, ok := file.byToken(text); ok {
			return p, nil
		}
	}
	if c.issuer == nil || strings.Count(text, ".") != 2 {
		return Principal{}, refuse("the token is not known")
	}
	found, err := c.issuer.verify(ctx, text)
	if err != nil {
		return Principal{}, err
	}
	return c.issuer.issuer.principal(file, found), nil
}

// bearer returns the token of an authorization header.
func bearer(headers []string) (string, error) {
	if len(headers) > 1 {
		return "", refuse("the call has several authorization headers")
	}
	scheme, text, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", refuse("the authorization header does not begin with Bearer")
	}
	if text = strings.TrimLeft(text, " "); text == "" || strings.ContainsAny(text, " \t") {
		return "", refuse("the authorization header has no token after Bearer")
	}
	return text, nil
}
