package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Role is what a principal may do. Each role includes those before it.
type Role int

// The roles. A principal without a role may do nothing.
const (
	None Role = iota
	// Read reads runs, journals and lists, and follows feeds.
	Read
	// Drive begins and drives runs, and does the work that runs leave to workers.
	Drive
	// Operate answers at gates, changes reactions and compacts runs.
	Operate
)

var roleNames = [...]string{"none", "read", "drive", "operate"}

// String returns the name of the role in files and claims.
func (r Role) String() string {
	if r < None || r > Operate {
		return fmt.Sprintf("Role(%d)", int(r))
	}
	return roleNames[r]
}

// roleOf returns the role of a name; None for any other text.
func roleOf(name string) Role {
	return Role(max(0, slices.Index(roleNames[:], name)))
}

// Principal is the originator of a call.
type Principal struct {
	// Name identifies the principal in logs and limits. Names of the file have no prefix; those from
	// claims begin with "oidc:".
	Name string
	Role Role
	// Tenants limits the principal to the runs of these tenants. If it is nil, the principal may work
	// on every run; if it is empty, on none.
	Tenants []string
	// Expires is the end of the credential; zero if it has none.
	Expires time.Time
}

// Limited reports whether the principal is limited to tenants.
func (p Principal) Limited() bool { return p.Tenants != nil }

// Admits reports whether the principal may work on runs of a tenant. Runs without a tenant belong to
// principals without a limit.
func (p Principal) Admits(tenant string) bool {
	return !p.Limited() || tenant != "" && slices.Contains(p.Tenants, tenant)
}

// Credentials are what a caller presents.
type Credentials struct {
	// Headers are the values of the call's authorization header.
	Headers []string
	// Certificate is the client's certificate, which the handshake has verified; nil for none.
	Certificate *x509.Certificate
}

var (
	// ErrUnauthenticated is the error of credentials that are missing or bad.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrUnavailable is the error of credentials that cannot be checked at present.
	ErrUnavailable = errors.New("the credentials cannot be checked now")
)

// Authenticator returns the principal that presents some credentials. It is safe for concurrent use.
//
// Errors: ErrUnauthenticated, ErrUnavailable. They contain no credential.
type Authenticator interface {
	Authenticate(ctx context.Context, c Credentials) (Principal, error)
}

// refuse returns an ErrUnauthenticated with its reason.
func refuse(reason string) error { return fmt.Errorf("%w: %s", ErrUnauthenticated, reason) }

type contextKey struct{}

// NewContext returns a context of a call by p.
func NewContext(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the principal of a call, and false if the server does not authenticate.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(Principal)
	return p, ok
}
