package runstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

func TestRegisterTwicePanics(t *testing.T) {
	t.Parallel()
	open := func(context.Context, runstore.URL) (runstore.RunStore, error) { return nil, nil }
	runstore.Register("twice", open)
	defer func() {
		if p := recover(); p == nil || !strings.Contains(p.(string), "twice") {
			t.Errorf("got panic %v, want one that names the scheme", p)
		}
	}()
	runstore.Register("twice", open)
}

// The error names the fault of a URL, and never a secret in it.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	runstore.Register("picky", func(_ context.Context, u runstore.URL) (runstore.RunStore, error) {
		return nil, u.RejectUnknownParams("sslmode")
	})
	for _, tc := range []struct{ url, says string }{
		{"", "has no scheme"},
		{"tape.db", "has no scheme"},
		{"./dir:name/tape.db", "has no scheme"},
		{":memory:", "has no scheme"},
		{"user:s3cret@host/db", `unknown scheme "user"`},
		{"nosuch://user:s3cret@host/db", `unknown scheme "nosuch"`},
		{"picky://user:s3cret@host/db?password=s3cret", `unknown key "password"; picky knows sslmode`},
		{"picky://user:s3cret@host/db?sslmode=a&sslmode=s3cret", `key "sslmode" is given 2 times`},
		{"picky://user:s3cret@host/db?sslmode=%zzs3cret", "is not key=value"},
		{"picky://user:s3cret@host/db?s3cret;", "is not key=value"},
		{"picky://user:s3cret@host/db?s3cret", "unknown key; picky knows sslmode"},
		{"picky://user:p?ss=w@host/db", "question mark"},
		{" picky://user:s3cret@host/db", "begins or ends with a space"},
		{"picky://user:s3cret@host/db\n", "begins or ends with a space"},
		{`"picky://user:s3cret@host/db"`, "quotation mark"},
		{"host=db user=u password=s3cret", "has no scheme"},
		{"password=s3cret:x", "has no scheme"},
	} {
		_, err := runstore.Open(t.Context(), tc.url)
		if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: got %v, want ErrInvalid that says %q", tc.url, err, tc.says)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: the message tells a secret or has several lines: %q", tc.url, err)
		}
	}
}
