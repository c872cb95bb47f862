package auth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"
)

// algorithms are the algorithms of signatures by public keys. An issuer may name others, for example
// with a secret that client and issuer share.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// fetchKey is the key of a context's *error, in which a keySet stores why it could not ask for keys:
// the library's verifier returns that error as a text.
type fetchKey struct{}

// keySet is the set of an issuer's keys.
type keySet struct{ remote *oidc.RemoteKeySet }

// VerifySignature returns the payload of a token that one of the keys signed. It asks the issuer for
// its keys if none of the known ones did.
func (k keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.remote.VerifySignature(ctx, token)
	if fetch, ok := ctx.Value(fetchKey{}).(*error); ok && err != nil {
		*fetch = errors.Unwrap(err) // nil for a signature of no key
	}
	return payload, err
}

// unsigned is a token that no key signed.
var unsigned = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256"}`)) + ".e30.AA"

// fetch asks the issuer for its keys, if none is known yet.
func (k keySet) fetch() error {
	var err error
	_, _ = k.VerifySignature(context.WithValue(context.Background(), fetchKey{}, &err), unsigned)
	return err
}

// bounded bounds the requests to an issuer: their rate and the size of the replies.
type bounded struct {
	next http.RoundTripper
	mu   sync.Mutex
	urls map[string]*document
}

// document is the state of the requests for a document.
type document struct {
	limit  *rate.Limiter
	failed bool // at the last request
}

// boundedClient returns a client that makes bounded requests as another one does.
func boundedClient(next *http.Client) *http.Client {
	client := *next
	client.Transport = &bounded{next: next.Transport, urls: map[string]*document{}}
	return &client
}

// RoundTrip makes a request. Its error wraps errTooSoon only if the last request that was made for the
// document had an answer.
func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !isLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%w by https", errUnreachable)
	}
	b.mu.Lock()
	of := b.urls[req.URL.String()]
	if of == nil {
		of = &document{limit: rate.NewLimiter(rate.Every(issuerInterval), 2)} // two, so that a new key is found at once
		b.urls[req.URL.String()] = of
	}
	allowed, failed := of.limit.Allow(), of.failed
	b.mu.Unlock()
	switch {
	case !allowed && failed:
		return nil, errUnreachable
	case !allowed:
		return nil, errTooSoon
	}
	res, err := b.ask(req)
	b.mu.Lock()
	of.failed = err != nil
	b.mu.Unlock()
	return res, err
}

func (b *bounded) ask(req *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxIssuerReply+1))
	if err != nil || len(data) > maxIssuerReply || res.StatusCode >= http.StatusBadRequest ||
		res.StatusCode < http.StatusMultipleChoices && !json.Valid(data) {
		return nil, errUnreachable
	}
	res.Body = io.NopCloser(bytes.NewReader(data))
	return res, nil
}
