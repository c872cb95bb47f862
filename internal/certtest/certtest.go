// Package certtest makes certificate authorities, certificates and revocation lists for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	Cert *x509.Certificate
	// PEM is the authority's certificate.
	PEM    []byte
	key    *ecdsa.PrivateKey
	serial int64
	number int64
}

// Pair is a certificate with its key.
type Pair struct {
	Cert, Key []byte // in PEM form
	Leaf      *x509.Certificate
}

// TLS returns the pair as crypto/tls takes it.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Write writes the pair as two files and returns their paths.
func (p Pair) Write(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	return Write(t, dir, "cert.pem", p.Cert), Write(t, dir, "key.pem", p.Key)
}

// Write writes a file and returns its path.
func Write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// New returns an authority whose certificate it has signed itself.
func New(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{}
	ca.init(t, nil, name)
	return ca
}

// Intermediate returns an authority whose certificate ca has signed.
func (ca *CA) Intermediate(t testing.TB, name string) *CA {
	t.Helper()
	below := &CA{}
	below.init(t, ca, name)
	return below
}

func (ca *CA) init(t testing.TB, above *CA, name string) {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	key := newKey(t)
	if above == nil {
		ca.key, ca.Cert = key, template
		above = ca
	}
	cert, data := above.sign(t, template, key)
	ca.key, ca.Cert, ca.PEM = key, cert, data
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (ca *CA) sign(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	ca.serial++
	template.SerialNumber = big.NewInt(ca.serial)
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Server returns a certificate of a server at 127.0.0.1 or, if they are given, at other hosts.
func (ca *CA) Server(t testing.TB, hosts ...string) Pair {
	t.Helper()
	return ca.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "server"}}, hosts...)
}

// Client returns a certificate of a client with the common name.
func (ca *CA) Client(t testing.TB, name string) Pair {
	t.Helper()
	return ca.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Issue returns a certificate with the fields of a template: by default of a server, at hosts or
// 127.0.0.1, for the next hour.
func (ca *CA) Issue(t testing.TB, template *x509.Certificate, hosts ...string) Pair {
	t.Helper()
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if hosts == nil {
			hosts = []string{"127.0.0.1"}
		}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(t)
	leaf, data := ca.sign(t, template, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{Cert: data, Key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), Leaf: leaf}
}

// CRL returns a list of the revoked certificates, in force until a time, with the fields of a
// template, which may be nil.
func (ca *CA) CRL(t testing.TB, until time.Time, template *x509.RevocationList, revoked ...Pair) []byte {
	t.Helper()
	if template == nil {
		template = &x509.RevocationList{}
	}
	ca.number++
	template.Number, template.ThisUpdate, template.NextUpdate = big.NewInt(ca.number), until.Add(-time.Hour), until
	for _, p := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: p.Leaf.SerialNumber, RevocationTime: until.Add(-time.Hour),
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, ca.Cert, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// Pool returns a pool with the authority.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}
