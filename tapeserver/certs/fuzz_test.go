package certs

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/certtest"
)

// FuzzLists checks that no list is accepted that an authority has not signed as it is.
func FuzzLists(f *testing.F) {
	ca := certtest.New(f, "ca")
	now := time.Now()
	list := ca.CRL(f, now.Add(time.Hour), nil, ca.Client(f, "client"))
	f.Add(list)
	f.Add(slices.Concat(list, list))
	f.Add(ca.PEM)
	f.Add([]byte("-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, _, err := parseLists(data, []*x509.Certificate{ca.Cert}, now)
		if err == nil && (len(all) != 1 || len(all[issuerOf(ca.Cert)].serials) != 1) {
			t.Errorf("lists %v of %q", all, data)
		}
	})
}
