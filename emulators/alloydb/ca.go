package alloydb

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
)

// clientKey is the key pair of every Dialer of this process.
var clientKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // the system's source of randomness does not fail
	}
	return key
})

// authority is the cluster's certificate authority.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
	skew atomic.Int64 // a time.Duration: this clock minus the machine's
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := longLived("root.alloydb.emulator")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key: key, cert: cert, pool: pool}, nil
}

// longLived returns a certificate template that is valid on any clock of a test: only client
// certificates are meant to expire.
func longLived(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serialNumber(),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.AddDate(-10, 0, 0),
		NotAfter:     now.AddDate(10, 0, 0),
	}
}

func serialNumber() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

// now returns the time on the stand-in's clock.
func (ca *authority) now() time.Time { return time.Now().Add(time.Duration(ca.skew.Load())) }

// signClient signs a client certificate that is valid for ttl, rounded up to the whole seconds of
// certificates.
func (ca *authority) signClient(public *rsa.PublicKey, ttl time.Duration) ([]byte, error) {
	now := ca.now()
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serialNumber(),
		Subject:      pkix.Name{CommonName: "client.alloydb.emulator"},
		NotBefore:    now.Add(-time.Minute), // clocks differ
		NotAfter:     now.Add(ttl + time.Second - time.Nanosecond).Truncate(time.Second),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.cert, public, ca.key)
}

// serverTLS returns the TLS configuration of an instance's proxy: a certificate for the instance's
// addresses, and only clients with a certificate of this authority that is valid on its clock.
func (ca *authority) serverTLS(instance string, addresses []string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := longLived(instance + ".server.alloydb.emulator")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, a)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca.pool,
		MinVersion:   tls.VersionTLS13,
		Time:         ca.now,
		// A resumed session would not show its certificate again.
		SessionTicketsDisabled: true,
		// The connector reads a reply with one call, so it must be one record.
		DynamicRecordSizingDisabled: true,
	}, nil
}

func certificatePEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// publicKeyFromPEM parses the key for which a connector requests a certificate.
func publicKeyFromPEM(text string) (*rsa.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "RSA PUBLIC KEY" {
		return nil, errors.New("the public key is not a PEM block of type RSA PUBLIC KEY")
	}
	return x509.ParsePKCS1PublicKey(block.Bytes)
}

// tokenSource is a token source of one token, which is valid for an hour from each request.
type tokenSource string

func (t tokenSource) Token() (*oauth2.Token, error) {
	return &oauth2.Token{AccessToken: string(t), TokenType: "Bearer", Expiry: time.Now().Add(time.Hour)}, nil
}

func newToken() string { return "emulator." + rand.Text() }
