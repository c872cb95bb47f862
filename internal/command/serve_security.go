package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/certs"
)

// securityConfig is the part of the configuration of serve that decides which callers are admitted.
type securityConfig struct {
	insecure   bool
	files      certs.Files
	minTLS     uint16 // 0: the default of package certs
	principals string // path; "" for none
	issuer     auth.Issuer
}

func (c securityConfig) tls() bool           { return c.files.Cert != "" }
func (c securityConfig) authenticates() bool { return c.principals != "" || c.issuer.URL != "" }

// missing returns what an address that others can reach lacks; "" if it lacks nothing.
func (c securityConfig) missing() string {
	switch {
	case !c.tls() && !c.authenticates():
		return "no TLS and no authentication"
	case !c.tls():
		return "no TLS"
	case !c.authenticates():
		return "no authentication"
	}
	return ""
}

// securitySources are the sources of the settings that decide which callers are admitted; see serveSources.
var securitySources = []settingSource{
	{"insecure", "TAPE_INSECURE", "serve.insecure"},
	{"tls-cert", "TAPE_TLS_CERT", "serve.tls_cert"},
	{"tls-key", "TAPE_TLS_KEY", "serve.tls_key"},
	{"tls-min-version", "TAPE_TLS_MIN_VERSION", "serve.tls_min_version"},
	{"tls-client-ca", "TAPE_TLS_CLIENT_CA", "serve.tls_client_ca"},
	{"tls-client-crl", "TAPE_TLS_CLIENT_CRL", "serve.tls_client_crl"},
	{"principals", "TAPE_PRINCIPALS", "serve.principals"},
	{"oidc-issuer", "TAPE_OIDC_ISSUER", "serve.oidc_issuer"},
	{"oidc-audience", "TAPE_OIDC_AUDIENCE", "serve.oidc_audience"},
	{"oidc-roles-claim", "TAPE_OIDC_ROLES_CLAIM", "serve.oidc_roles_claim"},
	{"oidc-tenants-claim", "TAPE_OIDC_TENANTS_CLAIM", "serve.oidc_tenants_claim"},
	{"max-calls-per-second", "TAPE_MAX_CALLS_PER_SECOND", "serve.max_calls_per_second"},
}

func addSecurityFlags(f *pflag.FlagSet) {
	f.Bool("insecure", false, "listen on an address that others can reach without TLS or without authentication [TAPE_INSECURE]")
	f.String("tls-cert", "", "file with the server's certificate, in PEM form; read again when it changes, as every file here [TAPE_TLS_CERT]")
	f.String("tls-key", "", "file with the private key of --tls-cert [TAPE_TLS_KEY]")
	f.String("tls-min-version", "1.2", `lowest version of TLS, "1.2" or "1.3" [TAPE_TLS_MIN_VERSION]`)
	f.String("tls-client-ca", "", "file with the authorities for clients; every client then needs a certificate [TAPE_TLS_CLIENT_CA]")
	f.String("tls-client-crl", "", "file with a revocation list of each of these authorities [TAPE_TLS_CLIENT_CRL]")
	f.String("principals", "", "file with tokens, certificates and identities, and the role and tenants of each [TAPE_PRINCIPALS]")
	f.String("oidc-issuer", "", "URL of an OpenID Connect issuer whose tokens are accepted [TAPE_OIDC_ISSUER]")
	f.String("oidc-audience", "", "audience that these tokens must have [TAPE_OIDC_AUDIENCE]")
	f.String("oidc-roles-claim", "", "claim with the roles of tokens whose identity the principals do not name [TAPE_OIDC_ROLES_CLAIM]")
	f.String("oidc-tenants-claim", "", "claim with their tenants; without it they may work on every run [TAPE_OIDC_TENANTS_CLAIM]")
	f.Int("max-calls-per-second", 0, "calls that one client begins per second, and requests to the inspector's API; 0 for no limit [TAPE_MAX_CALLS_PER_SECOND]")
}

// security returns the settings that decide which callers are admitted.
func (s *settings) security() (c securityConfig) {
	text := func(flag string) string { return s.values[flag].text }
	var err error
	if c.insecure, err = strconv.ParseBool(text("insecure")); err != nil {
		s.refuse(s.values["insecure"], "is %s; it is true or false", quoted(text("insecure")))
	}
	c.files = certs.Files{Cert: text("tls-cert"), Key: text("tls-key"), ClientCA: text("tls-client-ca"), ClientCRL: text("tls-client-crl")}
	c.principals = text("principals")
	c.issuer = auth.Issuer{
		URL: text("oidc-issuer"), Audience: text("oidc-audience"),
		RolesClaim: text("oidc-roles-claim"), TenantsClaim: text("oidc-tenants-claim"),
	}
	switch v := s.values["tls-min-version"]; v.text {
	case "1.2":
	case "1.3":
		c.minTLS = tls.VersionTLS13
	default:
		s.refuse(v, "is %s; it is 1.2 or 1.3", quoted(v.text))
	}
	if !s.alone {
		s.fit(c)
	}
	return c
}

// fit refuses settings that do not fit together.
func (s *settings) fit(c securityConfig) {
	for _, needs := range [][2]string{
		{"tls-cert", "tls-key"}, {"tls-key", "tls-cert"}, {"tls-client-ca", "tls-cert"}, {"tls-client-crl", "tls-client-ca"},
		{"oidc-issuer", "oidc-audience"}, {"oidc-audience", "oidc-issuer"}, {"oidc-roles-claim", "oidc-issuer"},
		{"oidc-tenants-claim", "oidc-roles-claim"},
	} {
		if v := s.values[needs[0]]; v.text != "" && s.values[needs[1]].text == "" {
			s.refuse(v, "needs --%s", needs[1])
		}
	}
	if c.files.ClientCA != "" && !c.authenticates() {
		s.refuse(s.values["tls-client-ca"], "needs --principals or --oidc-issuer, which say what a client may do")
	}
	if c.issuer.URL != "" && c.issuer.Audience != "" {
		if err := c.issuer.Check(); err != nil && (c.issuer.TenantsClaim == "" || c.issuer.RolesClaim != "") {
			s.refuse(s.values["oidc-issuer"], "is refused: %v", err)
		}
	}
	s.reachable(c)
}

// reachable refuses addresses that others can reach without TLS and authentication.
func (s *settings) reachable(c securityConfig) {
	missing := c.missing()
	if missing == "" || c.insecure {
		return
	}
	for _, flag := range []string{"listen", "ui-listen"} {
		v := s.values[flag]
		if host, _, err := net.SplitHostPort(v.text); err == nil && !onlyLocal(host) { // a malformed address cannot be listened on
			s.refuse(v, "is no loopback address, and there is %s: %s", missing, howToSecure)
		}
	}
}

const howToSecure = "give --tls-cert and --tls-key, and --principals or --oidc-issuer (docs/security.md), listen on 127.0.0.1, " +
	"or say --insecure where every client that can reach the address may read and change every run"

// onlyLocal reports whether the host of a listener is a loopback address or localhost. Another name may
// resolve to any address.
func onlyLocal(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// checkListener returns an error if others can reach the listener of a flag, which a name such as
// localhost may resolve to, although that is not allowed.
func (c securityConfig) checkListener(flag string, lis net.Listener, log *slog.Logger) error {
	missing := c.missing()
	a, ok := lis.Addr().(*net.TCPAddr)
	if missing == "" || !ok || a.IP.IsLoopback() {
		return nil
	}
	if !c.insecure {
		return fmt.Errorf("%s is %s, which is no loopback address, and there is %s: %s", flag, a, missing, howToSecure)
	}
	text := missing + ": every client that can reach this address can read and change every run"
	if c.authenticates() {
		text = missing + ": credentials and data pass the network in clear text"
	}
	log.Warn(text, "address", a.String())
	return nil
}

// secure adds what the configuration says about TLS and authentication to the options of a server,
// and follows the files until ctx ends.
func (c securityConfig) secure(ctx context.Context, opts *tapeserver.Options) error {
	if c.tls() {
		store, err := certs.Load(c.files, &certs.Options{MinVersion: c.minTLS, Logger: opts.Logger})
		if err != nil {
			return c.named(err)
		}
		go store.Watch(ctx, opts.Logger)
		opts.TLS = store
	}
	if !c.authenticates() {
		return nil
	}
	o := auth.Options{File: c.principals, Certificates: c.files.ClientCA != ""}
	if c.issuer.URL != "" {
		o.Issuer = &c.issuer
	}
	checker, err := auth.New(o)
	if err != nil {
		return c.named(err)
	}
	go checker.Watch(ctx, opts.Logger)
	opts.Auth = checker
	return nil
}

// named adds the flag of a file that cannot be read to the error.
func (c securityConfig) named(err error) error {
	var unread *fs.PathError
	if !errors.As(err, &unread) {
		return err
	}
	for _, f := range [][2]string{
		{"tls-cert", c.files.Cert}, {"tls-key", c.files.Key}, {"tls-client-ca", c.files.ClientCA}, {"tls-client-crl", c.files.ClientCRL},
		{"principals", c.principals},
	} {
		if f[1] == unread.Path {
			return fmt.Errorf("--%s: %w", f[0], err)
		}
	}
	return err
}

// shownTLS returns the kind of TLS for the log.
func (c securityConfig) shownTLS() string {
	switch {
	case c.files.ClientCA != "":
		return "mutual"
	case c.tls():
		return "server"
	default:
		return "none"
	}
}
