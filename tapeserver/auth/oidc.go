package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// Issuer configures an OpenID Connect issuer whose tokens are accepted.
type Issuer struct {
	// URL is the issuer's URL, as in the claim iss of its tokens. It must begin with https:// unless
	// its host is a loopback address or localhost.
	URL string
	// Audience must be among the claim aud of a token.
	Audience string
	// RolesClaim names the claim with roles: a text or a list of texts, of which the highest role
	// counts and others have no meaning. Empty means that only identities that the file names have a
	// role.
	RolesClaim string
	// TenantsClaim names the claim with tenants, a text or a list of texts; "*" among them means every
	// tenant, and a token without the claim has no tenant. Empty means that RolesClaim gives roles for
	// every tenant.
	TenantsClaim string
	// Client makes the requests to the issuer; by default one that gives up after 10 seconds.
	Client *http.Client
	// Now is the clock on which tokens expire; time.Now by default.
	Now func() time.Time
}

// Check returns an error that names the field and the problem, if the issuer is not well configured.
func (i Issuer) Check() error {
	u, err := url.Parse(i.URL)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return errors.New("the issuer is no URL; write https://HOST/PATH") // err may repeat a secret
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return errors.New("the issuer has more than a scheme, a host and a path")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("the issuer does not begin with https://; only on a loopback address may it begin with http://")
	case i.Audience == "":
		return errors.New("the audience is missing: any token of the issuer would be accepted")
	case i.TenantsClaim != "" && i.RolesClaim == "":
		return errors.New("a claim with tenants needs one with roles")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const (
	// issuerTimeout bounds a request to the issuer.
	issuerTimeout = 10 * time.Second
	// issuerInterval is the shortest time between two requests to the issuer for the same document.
	// Every token that is signed with an unknown key causes a request, forged ones too.
	issuerInterval = time.Second
	// keysAge is the time after which the issuer's configuration and keys are asked for again, so that
	// a key that the issuer has withdrawn is accepted for about an hour at most. While the issuer does
	// not answer, the former ones stay in use, and it is asked again after issuerRetry.
	keysAge     = time.Hour
	issuerRetry = time.Minute
	// maxIssuerReply is the size of the largest reply; Google's keys have 2 KiB.
	maxIssuerReply = 1 << 20
)

// verifier checks the tokens of an issuer. It asks the issuer for its configuration and its keys at
// the first token, and for its keys when a token names a key that is not known. Both are cached for
// keysAge, and replaced only by newer ones.
type verifier struct {
	issuer Issuer
	client *http.Client // for the configuration
	next   *http.Client // makes the requests of client, without their bounds

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the issuer has answered
	due      time.Time             // when the issuer is asked again
	asking   chan struct{}         // closed at the end of the request in flight; nil if there is none
	problem  error
}

func newVerifier(issuer Issuer) (*verifier, error) {
	if err := issuer.Check(); err != nil {
		return nil, err
	}
	if issuer.Now == nil {
		issuer.Now = time.Now
	}
	client := http.Client{Timeout: issuerTimeout}
	if issuer.Client != nil {
		client = *issuer.Client
	}
	if client.Transport == nil {
		client.Transport = http.DefaultTransport
	}
	return &verifier{issuer: issuer, client: boundedClient(&client), next: &client}, nil
}

// claims are the claims that the server reads.
type claims struct {
	subject, email string
	verified       bool
	expires        time.Time
	all            map[string]json.RawMessage
}

var (
	errTooSoon     = errors.New("the issuer was asked less than a second ago")
	errUnreachable = errors.New("the issuer does not answer")
)

// verify returns the claims of a token.
func (v *verifier) verify(ctx context.Context, text string) (claims, error) {
	of, err := v.discover(ctx)
	if err != nil {
		return claims{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var fetch error
	t, err := of.Verify(context.WithValue(ctx, fetchKey{}, &fetch), text)
	if err != nil {
		return claims{}, failure(ctx, err, fetch)
	}
	c := claims{subject: t.Subject, expires: t.Expiry}
	if err := t.Claims(&c.all); err != nil || c.subject == "" {
		return claims{}, refuse("the token has no claims that name its subject")
	}
	var known struct {
		Email    string `json:"email"`
		Verified any    `json:"email_verified"` // some issuers send a text
	}
	if t.Claims(&known) == nil {
		c.email, c.verified = known.Email, known.Verified == true || known.Verified == "true"
	}
	return c, nil
}

// failure returns the error of a token that was not verified. fetch is the error of the request for
// the keys, if there was one. The errors of the library are not passed on, because they repeat parts of
// the token.
func failure(ctx context.Context, err, fetch error) error {
	var expired *oidc.TokenExpiredError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	case errors.As(err, &expired):
		return refuse("the token has expired")
	case errors.Is(fetch, errTooSoon):
		return refuse("no key that the issuer has published signed the token")
	case fetch != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, errUnreachable)
	case strings.Contains(err.Error(), "expected audience"):
		return refuse("the token is for another audience")
	case strings.Contains(err.Error(), "different provider"):
		return refuse("the token has another issuer")
	default:
		return refuse("the token is malformed, not valid yet, or not signed by its issuer")
	}
}

// discover returns the verifier, which it makes from the issuer's configuration. Concurrent callers
// share a request. An old verifier is replaced in the background.
func (v *verifier) discover(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	v.mu.Lock()
	asking, known := v.asking, v.verifier
	if asking == nil && (known == nil || v.issuer.Now().After(v.due)) {
		asking = make(chan struct{})
		v.asking = asking
		go v.ask(asking)
	}
	v.mu.Unlock()
	if known != nil {
		return known, nil
	}
	select {
	case <-asking:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.verifier == nil {
		return nil, v.problem
	}
	return v.verifier, nil
}

func (v *verifier) ask(asking chan struct{}) {
	made, err := v.make()
	v.mu.Lock()
	defer v.mu.Unlock()
	defer close(asking)
	v.asking, v.due = nil, v.issuer.Now().Add(keysAge)
	if err != nil {
		v.due = v.issuer.Now().Add(issuerRetry)
		var mismatch *oidc.IssuerMismatchError
		if v.problem = errUnreachable; errors.As(err, &mismatch) {
			v.problem = errors.New("the issuer names itself otherwise than its URL")
		}
		return
	}
	v.verifier = made
}

// make returns a verifier with the issuer's present configuration and keys.
func (v *verifier) make() (*oidc.IDTokenVerifier, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(context.Background(), v.client), v.issuer.URL)
	if err != nil {
		return nil, err
	}
	var names struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&names); err != nil {
		return nil, err
	}
	// The requests for the keys have new bounds, so that forged tokens, which use up those of the former
	// keys, do not put off the renewal. The bounds of the configuration hold for this request too.
	keys := keySet{oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), boundedClient(v.next)), names.Keys)}
	if err := keys.fetch(); err != nil {
		return nil, err
	}
	config := &oidc.Config{ClientID: v.issuer.Audience, Now: v.issuer.Now}
	for _, name := range names.Algorithms {
		if slices.Contains(algorithms, name) {
			config.SupportedSigningAlgs = append(config.SupportedSigningAlgs, name)
		}
	}
	return oidc.NewVerifier(v.issuer.URL, keys, config), nil
}

// principal returns the principal that the claims of a token name: that of the file or, without one,
// that of the claims.
func (i Issuer) principal(file *Principals, c claims) Principal {
	if file != nil {
		if p, ok := file.byIdentity(c.subject, c.email, c.verified); ok {
			p.Expires = c.expires
			return p
		}
	}
	p := Principal{Name: "oidc:" + c.subject, Expires: c.expires}
	if i.RolesClaim == "" {
		return p
	}
	for _, name := range textsOf(c.all[i.RolesClaim]) {
		p.Role = max(p.Role, roleOf(name))
	}
	if i.TenantsClaim != "" {
		p.Tenants = textsOf(c.all[i.TenantsClaim])
		if slices.Contains(p.Tenants, "*") {
			p.Tenants = nil
		}
	}
	return p
}

// textsOf returns a claim that is a text or a list of texts. The result is not nil; it is empty for
// any other claim.
func textsOf(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil && len(raw) > 0 && raw[0] == '"' {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil || many == nil {
		return []string{}
	}
	return many
}
