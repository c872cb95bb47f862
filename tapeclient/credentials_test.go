package tapeclient_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/certs"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const secret = "s3cret-s3cret-s3cret-s3cret"

// serveAuth serves a store whose only principal, a reader, has the token secret, and returns the
// server's address.
func serveAuth(t *testing.T, tlsFiles *certs.Store) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "principals.yaml")
	if err := os.WriteFile(path, []byte("principals:\n  - {name: reader, role: read, token: "+secret+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	checker, err := auth.New(auth.Options{File: path})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := tapeserver.New(memory.New(nil).Open(), &tapeserver.Options{Auth: checker, TLS: tlsFiles, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return lis.Addr().String()
}

func getRun(t *testing.T, url string, opts tapeclient.Options) error {
	t.Helper()
	c, err := tapeclient.Dial(url, &opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Tape().GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	return err
}

func TestTokensAndTLS(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	f := certs.Files{}
	f.Cert, f.Key = ca.Server(t).Write(t, dir)
	store, err := certs.Load(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	address := serveAuth(t, store)
	trust := &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
	token := filepath.Join(dir, "token")
	with := func(text string) tapeclient.Options {
		certtest.Write(t, dir, "token", []byte(text))
		return tapeclient.Options{TLS: trust, Token: tapeclient.TokenFile(token)}
	}
	for _, scheme := range []string{"tapes://", "grpcs://"} {
		if err := getRun(t, scheme+address, with("\n"+secret+"\n")); !errors.Is(err, runstore.ErrNotFound) {
			t.Errorf("%s with a token: %v", scheme, err)
		}
	}
	for text, want := range map[string]string{
		secret + "x": "the token is not known", "": "has no token", "s3cret s3cret": "has more than a token", strings.Repeat("s3cret", 2000): "is no token",
	} {
		err := getRun(t, "tapes://"+address, with(text))
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a token of %d bytes: %v, want %q", len(text), err, want)
		}
		if runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("a token of %d bytes: outcome %v", len(text), runstore.OutcomeOf(err))
		}
	}
	if err := getRun(t, "tapes://"+address, tapeclient.Options{TLS: trust}); !errors.Is(err, tapeclient.ErrUnauthenticated) {
		t.Errorf("without a token: %v", err)
	}
	c, err := tapeclient.Dial("tapes://"+address, &tapeclient.Options{TLS: trust, Token: tapeclient.TokenFile(token)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	certtest.Write(t, dir, "token", []byte(secret)) // the file changes while the client is open
	_, err = c.Tape().BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a"})
	if !errors.Is(err, tapeclient.ErrDenied) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("a reader's BeginRun: %v", err)
	}
	_, err = c.Tape().BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: "r"})
	if !errors.Is(err, tapeclient.ErrDenied) {
		t.Errorf("a reader's BeginEffect: %v", err)
	}
}

func TestTokensInClearText(t *testing.T) {
	t.Parallel()
	token := func(context.Context) (string, error) { return secret, nil }
	for url, want := range map[string]string{
		"tape://db.internal": "Token: would be sent in clear text", "tapes://db.internal": "", "tape://localhost:1": "", "tape://[::1]:1": "",
	} {
		c, err := tapeclient.Dial(url, &tapeclient.Options{Token: token})
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "clear text")) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	if _, err := tapeclient.Dial("tape://h", &tapeclient.Options{TLS: &tls.Config{}}); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("TLS without it in the URL: %v", err)
	}
	if err := getRun(t, "tape://"+serveAuth(t, nil), tapeclient.Options{Token: token}); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("a token on loopback: %v", err)
	}
}
