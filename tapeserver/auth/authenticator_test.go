package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/tapestore/tapestore/internal/certtest"
)

// issuer is an OpenID Connect issuer. Its client calls it without a network, so a test within
// synctest.Test can wait for the end of its requests.
type issuer struct {
	URL    string
	client *http.Client
	mu     sync.Mutex
	keys   map[string]*ecdsa.PrivateKey // that it publishes, by id
	broken atomic.Bool
	noKeys atomic.Bool  // only the request for the keys fails
	asked  atomic.Int64 // for its keys
}

func newIssuer() *issuer {
	i := &issuer{URL: "http://localhost", keys: map[string]*ecdsa.PrivateKey{}}
	i.client = &http.Client{Transport: handlerTransport(func(w http.ResponseWriter, r *http.Request) {
		if i.broken.Load() || i.noKeys.Load() && r.URL.Path == "/keys" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var reply any
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			reply = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256", "HS256"}}
		case "/keys":
			i.asked.Add(1)
			i.mu.Lock()
			defer i.mu.Unlock()
			var set jose.JSONWebKeySet
			for id, key := range i.keys {
				set.Keys = append(set.Keys, jose.JSONWebKey{Key: &key.PublicKey, KeyID: id, Algorithm: "ES256", Use: "sig"})
			}
			reply = set
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(reply)
	})}
	return i
}

// handlerTransport makes a request by calling the handler.
type handlerTransport http.HandlerFunc

func (h handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	reply := httptest.NewRecorder()
	h(reply, req)
	return reply.Result(), nil
}

// key makes a key with an id and, if publish is set, publishes it.
func (i *issuer) key(t *testing.T, id string, publish bool) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if publish {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.keys[id] = key
	}
	return key
}

type fields = map[string]any

// token returns a token with the claims beside the usual ones.
func (i *issuer) token(t *testing.T, key any, alg jose.SignatureAlgorithm, id string, claims fields) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := fields{"iss": i.URL, "aud": "tape", "sub": "17", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	text, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func withToken(text string) Credentials { return Credentials{Headers: []string{"Bearer " + text}} }

func principalsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "principals.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokensOfAnIssuer(t *testing.T) {
	t.Parallel()
	i := newIssuer()
	key, unpublished := i.key(t, "k1", true), i.key(t, "k1", false)
	file := principalsFile(t, "principals:\n  - {name: named, role: operate, oidc_subject: boss}\n  - {name: mail, role: drive, tenants: [m], oidc_email: a@b}\n")
	c, err := New(Options{File: file, Issuer: &Issuer{URL: i.URL, Client: i.client, Audience: "tape", RolesClaim: "roles", TenantsClaim: "https://t/enants"}})
	if err != nil {
		t.Fatal(err)
	}
	es := func(claims fields) string { return i.token(t, key, jose.ES256, "k1", claims) }
	const tenants = "https://t/enants"
	for _, test := range []struct {
		name, token string
		want        Principal
		err         string
	}{
		{name: "roles and tenants", token: es(fields{"roles": []string{"x", "drive", "read"}, tenants: []string{"a"}}), want: Principal{Name: "oidc:17", Role: Drive, Tenants: []string{"a"}}},
		{name: "texts", token: es(fields{"roles": "operate", tenants: "b"}), want: Principal{Name: "oidc:17", Role: Operate, Tenants: []string{"b"}}},
		{name: "every tenant", token: es(fields{"roles": "read", tenants: []string{"a", "*"}}), want: Principal{Name: "oidc:17", Role: Read}},
		{name: "no tenant", token: es(fields{"roles": "read"}), want: Principal{Name: "oidc:17", Role: Read, Tenants: []string{}}},
		{name: "odd claims", token: es(fields{"roles": 3, tenants: fields{"*": 1}}), want: Principal{Name: "oidc:17", Tenants: []string{}}},
		{name: "null", token: es(fields{"roles": nil, tenants: nil}), want: Principal{Name: "oidc:17", Tenants: []string{}}},
		{name: "no role", token: es(nil), want: Principal{Name: "oidc:17", Tenants: []string{}}},
		{name: "a subject in the file", token: es(fields{"sub": "boss", "roles": "read"}), want: Principal{Name: "named", Role: Operate}},
		{name: "an address in the file", token: es(fields{"email": "a@b", "email_verified": true}), want: Principal{Name: "mail", Role: Drive, Tenants: []string{"m"}}},
		{name: "an address that is not verified", token: es(fields{"email": "a@b"}), want: Principal{Name: "oidc:17", Tenants: []string{}}},
		{name: "several audiences", token: es(fields{"aud": []string{"x", "tape"}, tenants: "*"}), want: Principal{Name: "oidc:17"}},
		{name: "another audience", token: es(fields{"aud": "other"}), err: "another audience"},
		{name: "another issuer", token: es(fields{"iss": "https://evil"}), err: "another issuer"},
		{name: "expired", token: es(fields{"exp": time.Now().Add(-time.Minute).Unix()}), err: "has expired"},
		{name: "without an end", token: es(fields{"exp": nil}), err: "has expired"},
		{name: "not yet valid", token: es(fields{"nbf": time.Now().Add(time.Hour).Unix()}), err: "not valid yet"},
		{name: "no subject", token: es(fields{"sub": ""}), err: "no claims that name its subject"},
		{name: "the public key as a secret", token: i.token(t, []byte(strings.Repeat("x", 64)), jose.HS256, "k1", nil), err: "malformed"},
		{name: "another key", token: i.token(t, unpublished, jose.ES256, "k1", nil), err: "signed"},
		{name: "no algorithm", token: "eyJhbGciOiJub25lIn0.e30.", err: "malformed"},
		{name: "no token of an issuer", token: "abc", err: "the token is not known"},
		{name: "nonsense", token: "a.b.c", err: "malformed"},
	} {
		got, err := c.Authenticate(t.Context(), withToken(test.token))
		switch {
		case test.err != "":
			if !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.name, err, test.err)
			}
			for _, part := range strings.Split(test.token, ".") {
				if err != nil && len(part) > 4 && strings.Contains(err.Error(), part) {
					t.Errorf("%s: the error has a part of the token: %v", test.name, err)
				}
			}
		case err != nil || got.Name != test.want.Name || got.Role != test.want.Role || got.Limited() != test.want.Limited() ||
			strings.Join(got.Tenants, ",") != strings.Join(test.want.Tenants, ",") || got.Expires.IsZero():
			t.Errorf("%s: %+v, %v, want %+v", test.name, got, err, test.want)
		}
	}
}

// TestKeysOfAnIssuer rotates the keys, and checks that they are cached and that forged tokens cause few
// requests.
func TestKeysOfAnIssuer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testKeysOfAnIssuer)
}

func testKeysOfAnIssuer(t *testing.T) {
	i := newIssuer()
	i.broken.Store(true)
	c, err := New(Options{Issuer: &Issuer{URL: i.URL, Client: i.client, Audience: "tape"}})
	if err != nil {
		t.Fatal(err)
	}
	first := i.key(t, "k1", true)
	check := func(token string) error {
		_, err := c.Authenticate(t.Context(), withToken(token))
		return err
	}
	good := i.token(t, first, jose.ES256, "k1", nil)
	if err := check(good); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnauthenticated) {
		t.Errorf("while the issuer is down: %v", err)
	}
	i.broken.Store(false)
	if err := check(good); err != nil {
		t.Fatalf("once it answers: %v", err)
	}
	synctest.Wait() // until the request for the keys is over: a caller could join it
	for range 20 {
		if err := check(good); err != nil {
			t.Fatal(err)
		}
	}
	if n := i.asked.Load(); n != 1 {
		t.Errorf("%d requests for the keys, want 1", n)
	}
	second := i.key(t, "k2", true)
	if err := check(i.token(t, second, jose.ES256, "k2", nil)); err != nil {
		t.Errorf("a token with a new key: %v", err)
	}
	synctest.Wait()
	if err := check(good); err != nil {
		t.Errorf("a token with the former key: %v", err)
	}
	forged := i.token(t, i.key(t, "", false), jose.ES256, "k3", nil)
	for range 200 {
		if err := check(forged); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
	}
	if n := i.asked.Load(); n != 2 { // time stands still
		t.Errorf("%d requests for the keys, want 2", n)
	}
	time.Sleep(issuerInterval)
	for range 200 {
		if err := check(forged); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
		synctest.Wait()
	}
	if n := i.asked.Load(); n != 3 {
		t.Errorf("%d requests for the keys a second later, want 3", n)
	}
	i.broken.Store(true)
	if err := check(good); err != nil {
		t.Errorf("with cached keys while the issuer is down: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other, err := New(Options{Issuer: &Issuer{URL: i.URL, Client: i.client, Audience: "tape"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Authenticate(ctx, withToken(good)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a caller that is gone: %v", err)
	}
}

// TestWithdrawnKeys removes a key at the issuer: an hour later its tokens are refused.
func TestWithdrawnKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testWithdrawnKeys)
}

func testWithdrawnKeys(t *testing.T) {
	i := newIssuer()
	c, err := New(Options{Issuer: &Issuer{URL: i.URL, Client: i.client, Audience: "tape"}})
	if err != nil {
		t.Fatal(err)
	}
	key := i.key(t, "k1", true)
	token := i.token(t, key, jose.ES256, "k1", fields{"exp": time.Now().Add(24 * time.Hour).Unix()})
	check := func() error {
		_, err := c.Authenticate(t.Context(), withToken(token))
		return err
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	delete(i.keys, "k1")
	i.mu.Unlock()
	if err := check(); err != nil {
		t.Errorf("within the hour: %v", err)
	}
	i.broken.Store(true)
	time.Sleep(keysAge + time.Minute)
	for range 3 { // the first call asks the issuer in the background
		if err := check(); err != nil {
			t.Errorf("after the hour, while the issuer is down: %v", err)
		}
		synctest.Wait()
	}
	i.broken.Store(false)
	time.Sleep(issuerRetry + time.Second)
	if err := check(); err != nil {
		t.Errorf("at the request that the issuer answers: %v", err)
	}
	synctest.Wait()
	if err := check(); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("after it: %v", err)
	}
}

func TestHeadersAndCertificates(t *testing.T) {
	t.Parallel()
	file := principalsFile(t, "principals:\n  - {name: a, role: read, token: "+secret+"}\n  - {name: b, role: drive, certificate: CN=b}\n")
	c, err := New(Options{File: file, Certificates: true})
	if err != nil {
		t.Fatal(err)
	}
	ca := certtest.New(t, "ca")
	b, other := ca.Client(t, "b").Leaf, ca.Client(t, "c").Leaf
	for _, test := range []struct {
		name  string
		given Credentials
		want  string
		err   string
	}{
		{name: "a token", given: withToken(secret), want: "a"},
		{name: "any case", given: Credentials{Headers: []string{"bearer  " + secret}}, want: "a"},
		{name: "a certificate", given: Credentials{Certificate: b}, want: "b"},
		{name: "both", given: Credentials{Headers: []string{"Bearer " + secret}, Certificate: b}, want: "a"},
		{name: "nothing", err: "no authorization header"},
		{name: "a bad token beside a certificate", given: Credentials{Headers: []string{"Bearer s3cret"}, Certificate: b}, err: "not known"},
		{name: "another certificate", given: Credentials{Certificate: other}, err: "belongs to no principal"},
		{name: "another scheme", given: Credentials{Headers: []string{"Basic " + secret}}, err: "does not begin with Bearer"},
		{name: "no scheme", given: Credentials{Headers: []string{secret}}, err: "does not begin with Bearer"},
		{name: "no token", given: Credentials{Headers: []string{"Bearer "}}, err: "no token after Bearer"},
		{name: "two tokens", given: Credentials{Headers: []string{"Bearer " + secret + " x"}}, err: "no token after Bearer"},
		{name: "two headers", given: Credentials{Headers: []string{"Bearer " + secret, "Bearer " + secret}}, err: "several"},
		{name: "a token of an issuer", given: withToken("a.b.c"), err: "not known"},
	} {
		got, err := c.Authenticate(t.Context(), test.given)
		if got.Name != test.want || (err == nil) != (test.err == "") ||
			err != nil && (!errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s: %q, %v, want %q, %q", test.name, got.Name, err, test.want, test.err)
		}
	}
	if err := os.WriteFile(file, []byte("principals:\n  - {name: a, role: read, token: "+secret+"}\n  - {name: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := c.Reload(); changed || err == nil || !strings.Contains(err.Error(), ":3: the principal has no role") {
		t.Errorf("a broken file: %v, %v", changed, err)
	}
	if _, err := c.Authenticate(t.Context(), Credentials{Certificate: b}); err != nil {
		t.Errorf("the former principals: %v", err)
	}
	if err := os.WriteFile(file, []byte("principals:\n  - {name: a, role: read, token: "+secret+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := c.Reload(); !changed || err != nil {
		t.Errorf("a changed file: %v, %v", changed, err)
	}
	if _, err := c.Authenticate(t.Context(), Credentials{Certificate: b}); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("a principal that is gone: %v", err)
	}
}

func TestFaultsOfOptions(t *testing.T) {
	t.Parallel()
	of := func(kind string) string {
		return principalsFile(t, "principals:\n  - {name: a, role: read, "+kind+": x}\n")
	}
	good := &Issuer{URL: "https://i", Audience: "a"}
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{}, "neither a file of principals nor an issuer"},
		{Options{File: of("oidc_subject")}, "principals.yaml:2: a has oidc_subject: give --oidc-issuer"},
		{Options{File: of("oidc_email"), Certificates: true}, "principals.yaml:2: a has oidc_email: give --oidc-issuer"},
		{Options{File: of("certificate"), Issuer: good}, "principals.yaml:2: a has certificate: give --tls-client-ca"},
		{Options{File: of("certificate"), Issuer: good, Certificates: true}, ""},
		{Options{File: filepath.Join(t.TempDir(), "none")}, "no such file"},
		{Options{Issuer: &Issuer{URL: "https://i"}}, "the audience is missing"},
		{Options{Issuer: &Issuer{URL: "://s3cret", Audience: "a"}}, "the issuer is no URL"},
		{Options{Issuer: &Issuer{URL: "https://u:s3cret@i", Audience: "a"}}, "more than a scheme"},
		{Options{Issuer: &Issuer{URL: "https://i?s3cret", Audience: "a"}}, "more than a scheme"},
		{Options{Issuer: &Issuer{URL: "http://i", Audience: "a"}}, "does not begin with https"},
		{Options{Issuer: &Issuer{URL: "http://[::1]:1", Audience: "a"}}, ""},
		{Options{Issuer: &Issuer{URL: "https://i", Audience: "a", TenantsClaim: "t"}}, "needs one with roles"},
	} {
		_, err := New(c.opts)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%+v: %v, want %q", c.opts, err, c.want)
		}
	}
	for role, want := range map[Role]string{None: "none", Read: "read", Drive: "drive", Operate: "operate", 9: "Role(9)"} {
		if role.String() != want {
			t.Errorf("%v, want %s", role, want)
		}
	}
}
