package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"
)

// lists are revocation lists by their issuer.
type lists map[issuerID]list

// issuerID identifies an authority by its name and its key, so that two authorities of one name, as
// after a change of the key, have a list each.
type issuerID [sha256.Size]byte

func issuerOf(ca *x509.Certificate) issuerID {
	return sha256.Sum256(slices.Concat(ca.RawSubject, ca.RawSubjectPublicKeyInfo))
}

// issuersOf returns, for each authority that others have issued, the certificates of those. A signature of an
// algorithm that Go does not check any more (SHA-1) counts as valid: it makes the check of lists stricter.
func issuersOf(authorities []*x509.Certificate) map[[sha256.Size]byte][]*x509.Certificate {
	all := map[[sha256.Size]byte][]*x509.Certificate{}
	for _, ca := range authorities {
		for _, issuer := range authorities {
			if issuerOf(issuer) == issuerOf(ca) || !bytes.Equal(ca.RawIssuer, issuer.RawSubject) {
				continue
			}
			if err := ca.CheckSignatureFrom(issuer); err == nil || errors.As(err, new(x509.InsecureAlgorithmError)) {
				id := sha256.Sum256(ca.Raw)
				all[id] = append(all[id], issuer)
			}
		}
	}
	return all
}

// list is a revocation list.
type list struct {
	serials map[string]bool
	// until is the end of its validity; zero for none.
	until time.Time
}

// parseLists reads the lists of a PEM file. Every authority must have one, with its signature. Of
// several of one authority the one with the highest number counts. Lists that have ended are kept, as
// check refuses their clients, and lists of other authorities are left out; both cause a warning.
func parseLists(data []byte, authorities []*x509.Certificate, now time.Time) (_ lists, warnings []string, _ error) {
	blocks, err := blocksOf(data, "X509 CRL")
	if err != nil {
		return nil, nil, err
	}
	all, newest := lists{}, map[issuerID]*x509.RevocationList{}
	for i, block := range blocks {
		parsed, err := parseList(block)
		if err != nil {
			return nil, nil, fmt.Errorf("list %d: %w", i+1, err)
		}
		signer := slices.IndexFunc(authorities, func(ca *x509.Certificate) bool { return parsed.CheckSignatureFrom(ca) == nil })
		switch name := parsed.Issuer.String(); {
		case signer < 0 && slices.ContainsFunc(authorities, func(ca *x509.Certificate) bool { return claims(parsed, ca) }):
			return nil, nil, fmt.Errorf("list %d, of %q, is not signed by that authority", i+1, name)
		case signer < 0:
			warnings = append(warnings, fmt.Sprintf("revocation list %d is ignored: its authority %q is not named for clients", i+1, name))
			continue
		}
		id := issuerOf(authorities[signer])
		if former := newest[id]; former != nil && former.Number.Cmp(parsed.Number) >= 0 {
			continue
		}
		newest[id] = parsed
		l := list{serials: map[string]bool{}, until: parsed.NextUpdate}
		for _, entry := range parsed.RevokedCertificateEntries {
			l.serials[string(entry.SerialNumber.Bytes())] = true
		}
		all[id] = l
	}
	for _, ca := range authorities {
		switch l, ok := all[issuerOf(ca)]; {
		case !ok:
			return nil, nil, fmt.Errorf("has no list of the authority %q", ca.Subject.String())
		case l.ended(now):
			warnings = append(warnings, fmt.Sprintf("every client of the authority %q is refused: its revocation list was in force until %s",
				ca.Subject.String(), l.until.Format(time.RFC3339)))
		}
	}
	return all, warnings, nil
}

// claims reports whether a list claims to be of an authority, rather than of another one of its name.
func claims(l *x509.RevocationList, ca *x509.Certificate) bool {
	return bytes.Equal(l.RawIssuer, ca.RawSubject) &&
		(len(l.AuthorityKeyId) == 0 || len(ca.SubjectKeyId) == 0 || bytes.Equal(l.AuthorityKeyId, ca.SubjectKeyId))
}

// parseList reads a complete list of its issuer's own certificates. A critical extension may change
// what a list means, for example into the changes since another list, so an unknown one is refused.
func parseList(der []byte) (*x509.RevocationList, error) {
	parsed, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, err
	}
	extensions := slices.Clone(parsed.Extensions)
	for _, entry := range parsed.RevokedCertificateEntries {
		extensions = append(extensions, entry.Extensions...)
	}
	if i := slices.IndexFunc(extensions, func(e pkix.Extension) bool { return e.Critical }); i >= 0 {
		return nil, fmt.Errorf("has the critical extension %v; want a complete list of one authority", extensions[i].Id)
	}
	if parsed.Number == nil {
		return nil, errors.New("has no number")
	}
	return parsed, nil
}

// check returns an error unless a list of the issuer that is in force leaves the certificate out.
func (l lists) check(cert, issuer *x509.Certificate, now time.Time) error {
	of, ok := l[issuerOf(issuer)]
	switch {
	case !ok:
		return fmt.Errorf("there is no revocation list of %q", issuer.Subject.String())
	case of.ended(now):
		return fmt.Errorf("the revocation list of %q is out of date", issuer.Subject.String())
	case of.serials[string(cert.SerialNumber.Bytes())]:
		return errors.New("the client's certificate, or one that it depends on, is revoked")
	}
	return nil
}

func (l list) ended(now time.Time) bool { return !l.until.IsZero() && now.After(l.until) }
