package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/tapeserver/certs"
)

// shake makes a handshake of a client with a server, and returns the server's state of it and the
// errors of both. The client's error includes that of its first read, because in TLS 1.3 a server
// judges the client after the client has finished.
func shake(t *testing.T, s *certs.Store, client *tls.Config) (state tls.ConnectionState, server, other error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	b, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		a, err := lis.Accept()
		if err != nil {
			done <- err
			return
		}
		conn := tls.Server(a, s.TLSConfig())
		err = conn.Handshake()
		if err == nil {
			state = conn.ConnectionState()
			_, err = conn.Write([]byte("x"))
		}
		_ = a.Close()
		done <- err
	}()
	conn := tls.Client(b, client)
	if other = conn.Handshake(); other == nil {
		_, other = conn.Read(make([]byte, 1))
	}
	_ = b.Close()
	return state, <-done, other
}

type files struct {
	dir string
	certs.Files
}

// write writes the files of a server; nil data leaves the file out.
func write(t *testing.T, server certtest.Pair, ca, crl []byte) files {
	t.Helper()
	f := files{dir: t.TempDir()}
	f.Cert, f.Key = server.Write(t, f.dir)
	if ca != nil {
		f.ClientCA = certtest.Write(t, f.dir, "ca.pem", ca)
	}
	if crl != nil {
		f.ClientCRL = certtest.Write(t, f.dir, "crl.pem", crl)
	}
	return f
}

func load(t *testing.T, f files, opts *certs.Options) *certs.Store {
	t.Helper()
	s, err := certs.Load(f.Files, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHandshakes(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	ca, foreign := certtest.New(t, "ca"), certtest.New(t, "ca") // of one name
	good, revoked, stranger := ca.Client(t, "good"), ca.Client(t, "revoked"), foreign.Client(t, "good")
	expired := ca.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "old"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	})
	noClient := ca.Server(t)
	below := ca.Intermediate(t, "below")
	indirect := below.Client(t, "indirect")
	alone := indirect
	indirect.Cert = slices.Concat(indirect.Cert, below.PEM)
	server := ca.Server(t)
	plain := load(t, write(t, server, nil, nil), nil)
	mutual := load(t, write(t, server, ca.PEM, nil), nil)
	listed := load(t, write(t, server, ca.PEM, ca.CRL(t, later, nil, revoked)), nil)
	newest := load(t, write(t, server, ca.PEM, slices.Concat(ca.CRL(t, later, nil), ca.CRL(t, later, nil, revoked))), nil)
	strict := load(t, write(t, server, nil, nil), &certs.Options{MinVersion: tls.VersionTLS13})
	chain := load(t, write(t, server, slices.Concat(ca.PEM, below.PEM),
		slices.Concat(ca.CRL(t, later, nil), below.CRL(t, later, nil, indirect))), nil)
	lowest := below.Intermediate(t, "lowest")
	nested := lowest.Client(t, "nested")
	nested.Cert = slices.Concat(nested.Cert, lowest.PEM)
	authority := certtest.Pair{Leaf: below.Cert}
	three := slices.Concat(ca.PEM, below.PEM, lowest.PEM)
	empty := slices.Concat(below.CRL(t, later, nil), lowest.CRL(t, later, nil))
	named := load(t, write(t, server, three, slices.Concat(ca.CRL(t, later, nil), empty)), nil)
	withdrawn := load(t, write(t, server, three, slices.Concat(ca.CRL(t, later, nil, authority), empty)), nil)
	ended := load(t, write(t, server, three, slices.Concat(ca.CRL(t, time.Now().Add(-time.Minute), nil), empty)), nil)
	for _, c := range []struct {
		name   string
		server *certs.Store
		client certtest.Pair
		change func(*tls.Config)
		want   string // of the server's error or, without one, of the client's
	}{
		{name: "server only", server: plain},
		{name: "server only, and the client has a certificate", server: plain, client: stranger},
		{name: "another authority of the server", server: plain, change: func(c *tls.Config) { c.RootCAs = foreign.Pool() }, want: "unknown authority"},
		{name: "wrong host", server: plain, change: func(c *tls.Config) { c.ServerName = "127.0.0.2" }, want: "127.0.0.2"},
		{name: "TLS 1.1", server: plain, change: func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, want: "unsupported versions"},
		{name: "TLS 1.2", server: plain, change: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }},
		{name: "TLS 1.2 to 1.3 only", server: strict, change: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, want: "unsupported versions"},
		{name: "mutual", server: mutual, client: good},
		{name: "mutual with TLS 1.2", server: mutual, client: good, change: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }},
		{name: "no client certificate", server: mutual, want: "client didn't provide a certificate"},
		{name: "another authority of the client", server: mutual, client: stranger, want: "certificate"},
		{name: "expired", server: mutual, client: expired, want: "expired"},
		{name: "a server's certificate as a client's", server: mutual, client: noClient, want: "usage"},
		{name: "not revoked", server: listed, client: good},
		{name: "revoked", server: listed, client: revoked, want: "revoked"},
		{name: "revoked, with TLS 1.2", server: listed, client: revoked, change: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, want: "revoked"},
		{name: "revoked by the newest of two lists", server: newest, client: revoked, want: "revoked"},
		{name: "an authority without a list", server: listed, client: indirect, want: "no revocation list of"},
		{name: "revoked below", server: chain, client: indirect, want: "revoked"},
		{name: "two authorities below", server: named, client: nested},
		{name: "a revoked authority", server: withdrawn, client: indirect, want: "revoked"},
		{name: "a revoked authority, and the client sends no chain", server: withdrawn, client: alone, want: "revoked"},
		{name: "an authority below a revoked one", server: withdrawn, client: nested, want: "revoked"},
		{name: "beside a revoked authority", server: withdrawn, client: good},
		{name: "an authority whose issuer's list has ended", server: ended, client: indirect, want: "out of date"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}
			if c.client.Cert != nil {
				config.Certificates = []tls.Certificate{c.client.TLS(t)}
			}
			if c.change != nil {
				c.change(config)
			}
			_, server, client := shake(t, c.server, config)
			err := server
			if strings.Contains(c.want, "127.0.0.2") || strings.Contains(c.want, "authority") {
				err = client
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("server %v, client %v, want %q", server, client, c.want)
			}
			if c.want != "" && client == nil {
				t.Error("the client was served")
			}
		})
	}
}

// TestRotation changes the files of a server and checks new handshakes and connections that are open.
func TestRotation(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	ca, next := certtest.New(t, "ca"), certtest.New(t, "next")
	client := ca.Client(t, "client")
	f := write(t, ca.Server(t), ca.PEM, ca.CRL(t, later, nil))
	s := load(t, f, nil)
	config := func(root *certtest.CA) *tls.Config {
		return &tls.Config{RootCAs: root.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{client.TLS(t)}}
	}
	open, server, _ := shake(t, s, config(ca))
	if server != nil || s.CheckClient(open) != nil || !s.Mutual() {
		t.Fatalf("%v, %v", server, s.CheckClient(open))
	}
	reload := func(what string, wantChanged bool, want string) {
		t.Helper()
		changed, err := s.Reload()
		if changed != wantChanged || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %v, %q", what, changed, err, wantChanged, want)
		}
	}
	served := next.Server(t)
	certtest.Write(t, f.dir, "cert.pem", served.Cert)
	reload("a certificate without its key", false, "does not match")
	if _, server, other := shake(t, s, config(ca)); server != nil || other != nil {
		t.Errorf("the former certificate is not served: %v, %v", server, other)
	}
	certtest.Write(t, f.dir, "key.pem", served.Key)
	reload("with its key", true, "")
	if _, server, other := shake(t, s, config(next)); server != nil || other != nil {
		t.Errorf("the new certificate is not served: %v, %v", server, other)
	}
	if err := s.CheckClient(open); err != nil {
		t.Errorf("an open connection: %v", err)
	}
	certtest.Write(t, f.dir, "crl.pem", ca.CRL(t, later, nil, client))
	reload("a new list", true, "")
	if err := s.CheckClient(open); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("an open connection of a revoked client: %v", err)
	}
	certtest.Write(t, f.dir, "crl.pem", slices.Concat(ca.CRL(t, later, nil), next.CRL(t, later, nil)))
	certtest.Write(t, f.dir, "ca.pem", slices.Concat(ca.PEM, next.PEM))
	reload("a second authority", true, "")
	if err := s.CheckClient(open); err != nil {
		t.Errorf("an open connection of the first authority: %v", err)
	}
	certtest.Write(t, f.dir, "crl.pem", next.CRL(t, later, nil))
	certtest.Write(t, f.dir, "ca.pem", next.PEM)
	reload("without the first", true, "")
	if err := s.CheckClient(open); err == nil || !strings.Contains(err.Error(), "no authority") {
		t.Errorf("an open connection of an authority that is gone: %v", err)
	}
	if err := s.CheckClient(tls.ConnectionState{}); err == nil {
		t.Error("a connection without a certificate is admitted")
	}
}

func TestTimePasses(t *testing.T) {
	t.Parallel()
	start := time.Now()
	now := start
	ca := certtest.New(t, "ca")
	client := ca.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: start.Add(-time.Hour), NotAfter: start.Add(10 * time.Minute),
	})
	s := load(t, write(t, ca.Server(t), ca.PEM, ca.CRL(t, start.Add(5*time.Minute), nil)), &certs.Options{Now: func() time.Time { return now }})
	config := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{client.TLS(t)}}
	open, server, _ := shake(t, s, config)
	if server != nil {
		t.Fatal(server)
	}
	now = start.Add(6 * time.Minute)
	if err := s.CheckClient(open); err == nil || !strings.Contains(err.Error(), "out of date") {
		t.Errorf("after the end of the list: %v", err)
	}
	if _, server, _ = shake(t, s, config); server == nil || !strings.Contains(server.Error(), "out of date") {
		t.Errorf("a handshake after the end of the list: %v", server)
	}
	now = start.Add(11 * time.Minute)
	if err := s.CheckClient(open); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after the end of the certificate: %v", err)
	}
}

func TestFaultsOfFiles(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	ca, other := certtest.New(t, "ca"), certtest.New(t, "other")
	server, leaf := ca.Server(t), ca.Client(t, "client")
	old := ca.Issue(t, &x509.Certificate{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	critical := []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}}}
	forged := ca.CRL(t, later, nil)
	forged[len(forged)/2]++ // in the text of the block
	for _, c := range []struct {
		name    string
		pair    certtest.Pair
		ca, crl []byte
		want    string
	}{
		{"no certificate", certtest.Pair{Cert: []byte("x"), Key: server.Key}, nil, nil, "failed to find"},
		{"another key", certtest.Pair{Cert: server.Cert, Key: other.Server(t).Key}, nil, nil, "does not match"},
		{"expired", old, nil, nil, "the certificate expired at"},
		{"no authority", server, []byte("\n"), nil, "ca.pem: has no CERTIFICATE"},
		{"text after the authority", server, slices.Concat(ca.PEM, []byte("x")), nil, "after 1 blocks"},
		{"a key as an authority", server, server.Key, nil, `block 1 is a "EC PRIVATE KEY"`},
		{"a broken authority", server, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), nil, "certificate 1:"},
		{"no list", server, ca.PEM, []byte("\n"), "crl.pem: has no X509 CRL"},
		{"only a foreign list", server, ca.PEM, other.CRL(t, later, nil), `has no list of the authority "CN=ca"`},
		{"a list in the name of an authority", server, ca.PEM, slices.Concat(ca.CRL(t, later, nil), impostor(t, ca, later)), `list 2, of "CN=ca", is not signed by that authority`},
		{"a forged list", server, ca.PEM, forged, "crl.pem: "},
		{"an authority without a list", server, slices.Concat(ca.PEM, other.PEM), ca.CRL(t, later, nil), `has no list of the authority "CN=other"`},
		{"a leaf as an authority", server, slices.Concat(ca.PEM, leaf.Cert), ca.CRL(t, later, nil), `has no list of the authority "CN=client"`},
		{"a list of changes", server, ca.PEM, ca.CRL(t, later, &x509.RevocationList{ExtraExtensions: critical}), "critical extension 2.5.29.27"},
	} {
		f := write(t, c.pair, c.ca, c.crl)
		_, err := certs.Load(f.Files, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), ".pem") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && bytes.Contains([]byte(err.Error()), []byte("PRIVATE KEY\n")) {
			t.Errorf("%s: the error contains a key", c.name)
		}
	}
	for _, f := range []certs.Files{{}, {Cert: "c"}, {Key: "k"}, {Cert: "c", Key: "k", ClientCRL: "r"}} {
		if _, err := certs.Load(f, nil); err == nil || !strings.Contains(err.Error(), "needs") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// impostor returns a list with the name and the key's identifier of an authority, which another key
// signed.
func impostor(t *testing.T, of *certtest.CA, until time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer := *of.Cert
	issuer.PublicKey = key.Public()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(99), ThisUpdate: until.Add(-time.Hour), NextUpdate: until}, &issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// TestListsWithoutUse loads a list that has ended and one of an authority that is not named, at
// the start and later: the other files are read, and clients of a list that has ended are refused.
func TestListsWithoutUse(t *testing.T) {
	t.Parallel()
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	ca, ended, gone, namesake := certtest.New(t, "ca"), certtest.New(t, "ended"), certtest.New(t, "gone"), certtest.New(t, "ca")
	client, lapsed := ca.Client(t, "client"), ended.Client(t, "lapsed")
	var log bytes.Buffer
	f := write(t, ca.Server(t), slices.Concat(ca.PEM, ended.PEM),
		slices.Concat(ca.CRL(t, later, nil), ended.CRL(t, past, nil), gone.CRL(t, later, nil), namesake.CRL(t, later, nil, client)))
	s := load(t, f, &certs.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	served := func(c certtest.Pair) error {
		_, server, _ := shake(t, s, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{c.TLS(t)}})
		return server
	}
	check := func(when string) {
		t.Helper()
		if err := served(lapsed); err == nil || !strings.Contains(err.Error(), "out of date") {
			t.Errorf("%s: a client of the list that has ended: %v", when, err)
		}
		for _, want := range []string{"CN=ended", "CN=gone", "crl.pem", "level=WARN"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s: the log has no %s: %s", when, want, log.String())
			}
		}
	}
	check("at the start")
	if err := served(client); err != nil {
		t.Errorf("a client of a list in force: %v", err)
	}
	log.Reset()
	certtest.Write(t, f.dir, "crl.pem", slices.Concat(ended.CRL(t, past, nil), gone.CRL(t, later, nil), ca.CRL(t, later, nil, client)))
	if changed, err := s.Reload(); !changed || err != nil {
		t.Errorf("Reload = %v, %v", changed, err)
	}
	check("later")
	if err := served(client); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a client that is revoked beside a list that has ended: %v", err)
	}
	certtest.Write(t, f.dir, "crl.pem", slices.Concat(ca.CRL(t, later, nil), ended.CRL(t, later, nil)))
	if changed, err := s.Reload(); !changed || err != nil || served(lapsed) != nil || served(client) != nil {
		t.Errorf("with new lists: %v, %v", changed, err)
	}
}
