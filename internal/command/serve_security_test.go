package command

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/certs"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestSecuritySettings(t *testing.T) {
	t.Parallel()
	const serverTLS = " --tls-cert=c --tls-key=k"
	for args, want := range map[string]string{
		"":                          "",
		"--listen=localhost:1":      "",
		"--listen=LOCALHOST:1":      "",
		"--listen=127.9.9.9:1":      "",
		"--listen=[::1]:1":          "",
		"--listen=nonsense":         "it is HOST:PORT",
		"--listen=:1":               "--listen is no loopback address, and there is no TLS and no authentication: give --tls-cert",
		"--listen=0.0.0.0:1":        "no TLS and no authentication",
		"--listen=[::]:1":           "no TLS and no authentication",
		"--listen=localhost.com:1":  "no TLS and no authentication",
		"--listen=127.0.0.1.nip:1":  "no TLS and no authentication",
		"--listen=[::ffff:a00:1]:1": "no TLS and no authentication",
		"--listen=:1 --insecure":    "",
		"--listen=:1" + serverTLS:   "there is no authentication: give",
		"--listen=:1 --principals=p --insecure=false":                         "there is no TLS: give",
		"--listen=:1 --principals=p" + serverTLS:                              "",
		"--principals=p":                                                      "",
		"--tls-cert=c":                                                        "--tls-cert needs --tls-key",
		"--tls-key=k":                                                         "--tls-key needs --tls-cert",
		"--tls-client-ca=a --principals=p":                                    "--tls-client-ca needs --tls-cert",
		"--tls-client-ca=a" + serverTLS:                                       "--tls-client-ca needs --principals or --oidc-issuer",
		"--tls-client-crl=a" + serverTLS:                                      "--tls-client-crl needs --tls-client-ca",
		"--tls-min-version=1.1":                                               `--tls-min-version is "1.1"; it is 1.2 or 1.3`,
		"--oidc-issuer=https://i":                                             "--oidc-issuer needs --oidc-audience",
		"--oidc-audience=a":                                                   "--oidc-audience needs --oidc-issuer",
		"--oidc-roles-claim=a":                                                "--oidc-roles-claim needs --oidc-issuer",
		"--oidc-issuer=http://i --oidc-audience=a":                            "does not begin with https://",
		"--oidc-issuer=http://localhost --oidc-audience=a":                    "",
		"--oidc-issuer=https://u:s3cret@i --oidc-audience=a":                  "more than a scheme, a host and a path",
		"--oidc-issuer=https://i --oidc-audience=a --oidc-tenants-claim=t":    "--oidc-tenants-claim needs --oidc-roles-claim",
		"--max-calls-per-second=-1":                                           "the least is 0",
		"--listen=:1 --oidc-issuer=https://i/x --oidc-audience=a" + serverTLS: "",
	} {
		_, s := resolved(t, "", nil, strings.Fields(args)...)
		err := errors.Join(s.faults...)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || len(s.faults) != 1) || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	got, s := resolved(t, "", map[string]string{"TAPE_TLS_MIN_VERSION": "1.3", "TAPE_MAX_CALLS_PER_SECOND": "7"}, strings.Fields(
		"--tls-cert=c --tls-key=k --tls-client-ca=ca --tls-client-crl=crl --principals=p --oidc-issuer=https://i --oidc-audience=a --oidc-roles-claim=r --oidc-tenants-claim=t")...)
	want := securityConfig{
		files: certs.Files{Cert: "c", Key: "k", ClientCA: "ca", ClientCRL: "crl"}, minTLS: tls.VersionTLS13, principals: "p",
		issuer: auth.Issuer{URL: "https://i", Audience: "a", RolesClaim: "r", TenantsClaim: "t"},
	}
	if len(s.faults) > 0 || got.security.files != want.files || got.security.minTLS != want.minTLS || got.security.principals != want.principals ||
		got.security.issuer.URL != want.issuer.URL || got.security.issuer.Audience != "a" || got.security.issuer.RolesClaim != "r" ||
		got.security.issuer.TenantsClaim != "t" || got.limits.CallsPerSecond != 7 {
		t.Errorf("%v, %+v, want %+v", s.faults, got.security, want)
	}
}

// Settings that need each other may come from different places.
func TestSecuritySettingsOfSeveralPlaces(t *testing.T) {
	t.Parallel()
	file := configFile(t, "serve:\n  listen: ':1'\n  tls_cert: c\n  principals: p\n")
	if _, s := resolved(t, file, map[string]string{"TAPE_TLS_KEY": "k"}); len(s.faults) > 0 {
		t.Errorf("the key in the environment: %v", s.faults)
	}
	_, s := resolved(t, file, nil)
	if err := errors.Join(s.faults...); err == nil || !strings.HasSuffix(err.Error(), "tape.yaml:3: serve.tls_cert: needs --tls-key") {
		t.Errorf("no key: %v", err)
	}
	file = configFile(t, "serve:\n  listen: ':1'\n")
	_, s = resolved(t, file, nil)
	if err := errors.Join(s.faults...); err == nil || !strings.Contains(err.Error(), "tape.yaml:2: serve.listen: is no loopback address") {
		t.Errorf("an open address: %v", err)
	}
	if _, s = resolved(t, file, nil, "--insecure"); len(s.faults) > 0 {
		t.Errorf("with --insecure: %v", s.faults)
	}
}

// TestServeWithTLS serves on every address with TLS and a token, and reads a changed file of principals.
func TestServeWithTLS(t *testing.T) {
	// Not parallel: serve sets the process's logger.
	defer slog.SetDefault(slog.Default())
	const secret = "s3cret-s3cret-s3cret-s3cret"
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	cfg := config("memory:")
	cfg.listen = "0.0.0.0:0"
	cfg.security.files.Cert, cfg.security.files.Key = ca.Server(t).Write(t, dir)
	out := newOutput()
	if err := serve(t.Context(), cfg, out); err == nil || !strings.Contains(err.Error(), "--listen is [::]:") || !strings.Contains(err.Error(), "no authentication") {
		t.Errorf("serve without authentication = %v", err)
	}
	cfg.security.principals = filepath.Join(dir, "principals.yaml")
	if err := serve(t.Context(), cfg, out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("serve without its principals = %v", err)
	}
	certtest.Write(t, dir, "principals.yaml", []byte("principals:\n  - {name: a, role: drive, token: "+secret+"}\n"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, out) }()
	_, port, _ := strings.Cut(out.line(t, `msg=serving grpc=(\S+) .* tls=server authentication=true`), "]:")
	dial := func(token string) *tapeclient.Client {
		c, err := tapeclient.Dial("tapes://127.0.0.1:"+port, &tapeclient.Options{
			TLS: &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}, Token: func(context.Context) (string, error) { return token, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	if _, err := dial(secret).Tape().BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "a"}); err != nil {
		t.Errorf("BeginRun = %v", err)
	}
	_, err := dial(secret+"x").Tape().GetRun(ctx, &tapepb.GetRunRequest{RunId: "r"})
	if status.Code(err) != codes.Unauthenticated || !errors.Is(err, tapeclient.ErrUnauthenticated) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("GetRun with another token = %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("serve = %v", err)
	}
	if text := out.text.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "clear text") || !strings.Contains(text, "refused a call") {
		t.Errorf("log:\n%s", text)
	}
}

// A file that cannot be read is named with its flag.
func TestFilesOfServeAreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certtest.New(t, "ca")
	cert, key := ca.Server(t).Write(t, dir)
	none := filepath.Join(dir, "nope")
	for args, want := range map[string]string{
		"--principals " + none:                      "--principals: open " + none,
		"--tls-cert " + none + " --tls-key " + key:  "--tls-cert: open " + none,
		"--tls-cert " + cert + " --tls-key " + none: "--tls-key: open " + none,
		"--principals p --tls-client-ca " + none + " --tls-cert " + cert + " --tls-key " + key: "--tls-client-ca: open " + none,
	} {
		_, _, err := here(t, "", append([]string{"serve", "--listen", "127.0.0.1:0", "--healthz-listen", "", "--store", "sqlite:" + none + "?create=no"}, strings.Fields(args)...)...)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
