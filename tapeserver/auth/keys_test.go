package auth

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// TestIssuerWithoutKeys makes only the request for the keys fail: at the first token, for a new key and
// when the keys are renewed. Valid tokens are accepted or cannot be checked; none is refused.
func TestIssuerWithoutKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testIssuerWithoutKeys)
}

func testIssuerWithoutKeys(t *testing.T) {
	i := newIssuer()
	i.noKeys.Store(true)
	newChecker := func() *Checker {
		c, err := New(Options{Issuer: &Issuer{URL: i.URL, Client: i.client, Audience: "tape"}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	end := fields{"exp": time.Now().Add(24 * time.Hour).Unix()}
	good := i.token(t, i.key(t, "k1", true), jose.ES256, "k1", end)
	c := newChecker()
	check := func(c *Checker, what, token string, want error) {
		t.Helper()
		if _, err := c.Authenticate(t.Context(), withToken(token)); !errors.Is(err, want) || errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		synctest.Wait() // until the requests are over: a caller could join one
	}
	check(c, "no key is known", good, ErrUnavailable)
	i.noKeys.Store(false)
	check(c, "once the issuer answers", good, nil)
	i.noKeys.Store(true)
	fresh := newChecker()
	for range 10 { // most of them too soon to ask again
		check(fresh, "no key is known", good, ErrUnavailable)
	}
	rotated := i.token(t, i.key(t, "k2", true), jose.ES256, "k2", end)
	for range 10 {
		check(c, "a new key", rotated, ErrUnavailable)
	}
	check(c, "a known key", good, nil)

	time.Sleep(keysAge + time.Minute)
	check(c, "at the renewal", good, nil)
	check(c, "after a renewal that failed", good, nil)
}
