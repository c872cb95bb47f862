package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/reload"
)

// Files names the files of a Store, in PEM form.
type Files struct {
	// Cert has the server's certificate, followed by the intermediate ones; Key its private key.
	Cert, Key string
	// ClientCA has the certificates of the authorities for clients. Empty means that clients present
	// no certificate.
	ClientCA string
	// ClientCRL has one revocation list for each certificate of ClientCA; empty for none. A list that
	// has ended admits no client of its authority, and lists of other authorities are ignored.
	ClientCRL string
}

// Options configures a Store; nil, and each zero field, means the default.
type Options struct {
	// MinVersion is the lowest version of TLS; tls.VersionTLS12 by default.
	MinVersion uint16
	// Now is the clock on which certificates and lists are judged; time.Now by default.
	Now func() time.Time
	// Logger receives a warning, whenever the files are read, for each list that has ended, and for each
	// that is ignored because its authority is not named; slog.Default() by default.
	Logger *slog.Logger
}

// Store holds the certificates of a server. It is safe for concurrent use.
type Store struct {
	mutual bool
	value  *reload.Value[*content]
	opts   Options
}

// content is what the files have.
type content struct {
	config *tls.Config
	// authorities are the fingerprints of the certificates of ClientCA.
	authorities map[[sha256.Size]byte]bool
	lists       lists // nil without ClientCRL
	// issuers are, for each of these authorities that others of them have issued, the certificates of those.
	issuers map[[sha256.Size]byte][]*x509.Certificate
}

// Load returns a Store with the contents of the files.
//
// Errors: of the file system; one that names the file and what is wrong with it. They contain no part
// of a private key.
func Load(files Files, opts *Options) (*Store, error) {
	switch {
	case files.Cert == "" || files.Key == "":
		return nil, errors.New("certs: a certificate needs its key, and a key its certificate")
	case files.ClientCRL != "" && files.ClientCA == "":
		return nil, errors.New("certs: a revocation list needs the authorities that signed it")
	}
	s := &Store{mutual: files.ClientCA != ""}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Logger = cmp.Or(s.opts.Logger, slog.Default())
	s.opts.MinVersion = cmp.Or(s.opts.MinVersion, tls.VersionTLS12)
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	paths := []string{files.Cert, files.Key}
	for _, path := range []string{files.ClientCA, files.ClientCRL} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	var err error
	s.value, err = reload.Load(paths, func(data [][]byte) (*content, error) { return s.parse(files, data) })
	return s, err
}

func (s *Store) parse(files Files, data [][]byte) (*content, error) {
	pair, err := tls.X509KeyPair(data[0], data[1])
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", files.Cert, files.Key, err)
	}
	if now := s.opts.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: the certificate expired at %s", files.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	c := &content{config: &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: s.opts.MinVersion, Time: s.opts.Now,
		// A resumed session would skip a part of the checks of a certificate. Connections are few and
		// long here, so resumption saves nothing.
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
	}}
	if files.ClientCA == "" {
		return c, nil
	}
	authorities, err := certificates(data[2])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.ClientCA, err)
	}
	c.authorities = map[[sha256.Size]byte]bool{}
	c.config.ClientAuth, c.config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	for _, ca := range authorities {
		c.config.ClientCAs.AddCert(ca)
		c.authorities[sha256.Sum256(ca.Raw)] = true
	}
	if files.ClientCRL != "" {
		var warnings []string
		if c.lists, warnings, err = parseLists(data[3], authorities, s.opts.Now()); err != nil {
			return nil, fmt.Errorf("%s: %w", files.ClientCRL, err)
		}
		for _, text := range warnings {
			s.opts.Logger.Warn(text, "file", files.ClientCRL)
		}
		c.issuers = issuersOf(authorities)
	}
	c.config.VerifyConnection = func(state tls.ConnectionState) error { return c.checkClient(state, s.opts.Now()) }
	return c, nil
}

// certificates returns the certificates of a PEM file, which has at least one and nothing else.
func certificates(data []byte) (all []*x509.Certificate, err error) {
	blocks, err := blocksOf(data, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	for i, block := range blocks {
		c, err := x509.ParseCertificate(block)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// blocksOf returns the blocks of a PEM file, all of which must have the type kind.
func blocksOf(data []byte, kind string) (all [][]byte, err error) {
	for len(bytes.TrimSpace(data)) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return nil, fmt.Errorf("after %d blocks of %s there is text that is no PEM block", len(all), kind)
		}
		if block.Type != kind {
			return nil, fmt.Errorf("block %d is a %.32q, want %s", len(all)+1, block.Type, kind)
		}
		all = append(all, block.Bytes)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("has no %s", kind)
	}
	return all, nil
}

// TLSConfig returns the configuration of a server, which follows the files.
func (s *Store) TLSConfig() *tls.Config {
	config := s.value.Get().config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.value.Get().config, nil }
	return config
}

// Mutual reports whether clients present certificates.
func (s *Store) Mutual() bool { return s.mutual }

// Expires returns when the certificate that the server presents expires.
func (s *Store) Expires() time.Time { return s.value.Get().config.Certificates[0].Leaf.NotAfter }

// CheckClient checks the client of an open connection against the files as they are now: its
// certificate chains to an authority that is still named, has not expired and is not revoked. It
// returns nil if clients present no certificates.
func (s *Store) CheckClient(state tls.ConnectionState) error {
	if !s.mutual {
		return nil
	}
	return s.value.Get().checkClient(state, s.opts.Now())
}

// checkClient returns nil if one of the verified chains of a connection is admitted, or else the error
// of the last one.
func (c *content) checkClient(state tls.ConnectionState, now time.Time) error {
	err := errors.New("the client presented no certificate")
	for _, chain := range state.VerifiedChains {
		if err = c.checkChain(chain, now); err == nil {
			return nil
		}
	}
	return err
}

func (c *content) checkChain(chain []*x509.Certificate, now time.Time) error {
	if !c.authorities[sha256.Sum256(chain[len(chain)-1].Raw)] {
		return errors.New("the client's certificate has no authority that is named any more")
	}
	for i, cert := range chain {
		if now.After(cert.NotAfter) {
			return errors.New("the client's certificate, or one that it depends on, has expired")
		}
		if c.lists == nil || i == len(chain)-1 {
			continue
		}
		if err := c.lists.check(cert, chain[i+1], now); err != nil {
			return err
		}
	}
	return c.checkAuthority(chain[len(chain)-1], nil, now)
}

// checkAuthority returns nil if the lists of the authorities above ca, up to one that no other has issued,
// admit ca. crypto/tls ends a chain at any authority that is named, also at an intermediate one. The
// certificates below ca were checked already.
func (c *content) checkAuthority(ca *x509.Certificate, below []*x509.Certificate, now time.Time) (err error) {
	for _, issuer := range c.issuers[sha256.Sum256(ca.Raw)] {
		if slices.ContainsFunc(below, issuer.Equal) { // authorities that have issued each other
			continue
		}
		if err = c.lists.check(ca, issuer, now); err == nil {
			err = c.checkAuthority(issuer, append(below, ca), now)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// Reload looks at the files at once. It reports whether they have changed; after an error the former
// contents stay in use.
func (s *Store) Reload() (changed bool, err error) { return s.value.Check() }

// Watch follows the files until ctx ends, and logs each change and each fault once.
func (s *Store) Watch(ctx context.Context, log *slog.Logger) {
	s.value.Watch(ctx, reload.Interval, "certificates", log)
}
