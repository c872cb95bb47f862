package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/internal/certtest"
)

const secret = "s3cret-s3cret-s3cret-s3cret"

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func parse(t *testing.T, text string) *Principals {
	t.Helper()
	p, err := ParsePrincipals("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrincipalsByCredential(t *testing.T) {
	t.Parallel()
	p := parse(t, fmt.Sprintf(`
principals:
  - {name: plain, role: read, token: %q}
  - {name: hashed, role: drive, tenants: [a, b], token_sha256: ["%s", "%s"]}
  - {name: ops, role: operate, certificate: "CN=ops,O=Acme"}
  - {name: any, role: read, tenants: c, certificate: "*"}
  - {name: sub, role: drive, oidc_subject: "17"}
  - {name: mail, role: drive, oidc_email: "a@b"}
`, secret, hashOf("first-first-first-first"), strings.ToUpper(hashOf("second-second-second-second"))))
	show := func(p Principal, ok bool) string {
		if !ok {
			return "none"
		}
		return fmt.Sprint(p.Name, " ", p.Role, " ", p.Tenants, " ", p.Limited())
	}
	ca := certtest.New(t, "ca")
	cert := func(names ...pkix.AttributeTypeAndValue) *x509.Certificate {
		return ca.Issue(t, &x509.Certificate{Subject: pkix.Name{ExtraNames: names}}).Leaf
	}
	cn := func(v string) pkix.AttributeTypeAndValue {
		return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: v}
	}
	o := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "Acme"}
	for _, c := range []struct{ what, got, want string }{
		{"a token", show(p.byToken(secret)), "plain read [] false"},
		{"a hashed token", show(p.byToken("first-first-first-first")), "hashed drive [a b] true"},
		{"another", show(p.byToken("second-second-second-second")), "hashed drive [a b] true"},
		{"a hash as a token", show(p.byToken(hashOf(secret))), "none"},
		{"an unknown token", show(p.byToken(secret + "x")), "none"},
		{"no token", show(p.byToken("")), "none"},
		{"a certificate", show(p.byCertificate(cert(o, cn("ops")))), "ops operate [] false"},
		{"the same names in another order", show(p.byCertificate(cert(cn("ops"), o))), "any read [c] true"},
		{"a second common name", show(p.byCertificate(cert(o, cn("x"), cn("ops")))), "any read [c] true"},
		{"a name with the separator in it", show(p.byCertificate(cert(cn("ops,O=Acme")))), "any read [c] true"},
		{"a subject", show(p.byIdentity("17", "", false)), "sub drive [] false"},
		{"a verified address", show(p.byIdentity("18", "a@b", true)), "mail drive [] false"},
		{"an address that is not verified", show(p.byIdentity("18", "a@b", false)), "none"},
		{"an address as a subject", show(p.byIdentity("a@b", "", true)), "none"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
		}
	}
	if got, _ := p.byCertificate(cert(cn("x"))); got.Expires.IsZero() {
		t.Error("the principal of a certificate does not expire")
	}
	for _, c := range []struct {
		tenants []string
		tenant  string
		want    bool
	}{{nil, "", true}, {nil, "a", true}, {[]string{}, "", false}, {[]string{}, "a", false}, {[]string{"a"}, "a", true}, {[]string{"a", ""}, "", false}, {[]string{"a"}, "b", false}} {
		if got := (Principal{Tenants: c.tenants}).Admits(c.tenant); got != c.want {
			t.Errorf("%q admit %q: %v", c.tenants, c.tenant, got)
		}
	}
}

func TestFaultsOfPrincipals(t *testing.T) {
	t.Parallel()
	one := func(fields string) string { return "principals:\n  - {" + fields + "}\n" }
	for text, want := range map[string]string{
		"":                                  "p.yaml:1: is empty",
		"# nothing":                         "p.yaml:1: is empty",
		"a: [" + secret:                     "is not YAML",
		"[]":                                "p.yaml:1: the file is no mapping",
		"principal: []":                     "p.yaml:1: the file has an unknown key; the keys are principals",
		"principals: []":                    "p.yaml:1: principals is not a list with an element",
		"principals: x":                     "is not a list",
		"principals:\n- x":                  "p.yaml:2: the principal is no mapping",
		"principals:\n---\na: b":            "p.yaml:2: more follows the document",
		one("name: a, role: read"):          "p.yaml:2: the principal has no credential",
		one("name: a, token: " + secret):    "p.yaml:2: the principal has no role",
		one("role: read, token: " + secret): "p.yaml:2: the principal has no name",
		one("name: a b, role: read, token: " + secret):                                                                     "p.yaml:2: name has 1 to 128",
		one("name: [a], role: read, token: " + secret):                                                                     "p.yaml:2: name is a text",
		one("name: a, role: none, token: " + secret):                                                                       "p.yaml:2: role is read, drive or operate",
		one("name: a, role: Read, token: " + secret):                                                                       "p.yaml:2: role is read, drive or operate",
		one("name: a, role: read, token: short-s3cret"):                                                                    "p.yaml:2: token has 20 to 4096",
		one(`name: a, role: read, token: "` + secret + ` x"`):                                                              "p.yaml:2: token has 20 to 4096",
		one("name: a, role: read, token: " + strings.Repeat("s3cret", 1000)):                                               "p.yaml:2: token has 20 to 4096",
		one("name: a, role: read, token_sha256: s3cret"):                                                                   "p.yaml:2: token_sha256 is 64 hexadecimal digits",
		one("name: a, role: read, token: 12345678901234567890"):                                                            "p.yaml:2: token is a text",
		one("name: a, role: read, token: !!str " + secret):                                                                 "p.yaml:2: token is a text",
		one("name: a, role: read, token: []"):                                                                              "p.yaml:2: token has 0 elements",
		one("name: a, role: read, token: {a: s3cret}"):                                                                     "p.yaml:2: token is a text",
		one("name: a, role: read, tenants: [], token: " + secret):                                                          "p.yaml:2: tenants has 0 elements",
		one(`name: a, role: read, tenants: [""], token: ` + secret):                                                        "p.yaml:2: tenants is empty",
		one("name: a, role: read, tenant: [x], token: " + secret):                                                          "p.yaml:2: the principal has an unknown key",
		one("name: a, role: read, role: drive, token: " + secret):                                                          "p.yaml:2: role is given twice",
		one("name: a, role: read, token: [" + secret + ", " + secret + "]"):                                                "p.yaml:2: token is given in line 2 too",
		one("name: a, role: read, certificate: " + strings.Repeat("x", 1025)):                                              "p.yaml:2: certificate is empty, is not UTF-8, or has more than 1024 bytes",
		one("name: a, role: read, token: "+secret) + "  - {name: a, role: read, token: " + secret + "x}\n":                 "p.yaml:3: the name a is given to another principal in line 2",
		one("name: a, role: read, token: "+secret) + "  - {name: b, role: read, token_sha256: '" + hashOf(secret) + "'}\n": "p.yaml:3: token_sha256 is given in line 2 too",
		"principals:\n  - &x {name: a, role: read, token: " + secret + "}\n  - *x\n":                                       "p.yaml:3: the principal is no mapping",
		"principals:\n  - {name: a, role: read, token: &t " + secret + "}\n  - {name: b, role: read, token: *t}\n":         "is a text",
	} {
		_, err := ParsePrincipals("p.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: the error has the secret: %v", text, err)
		}
	}
	several := "principals:\n  - {name: a, role: x, token: " + secret + "}\n  - {name: b, role: read}\n"
	if _, err := ParsePrincipals("p.yaml", []byte(several)); err == nil || strings.Count(err.Error(), "p.yaml:") != 2 {
		t.Errorf("%v, want two faults", err)
	}
}

// FuzzPrincipals checks that no file makes the parser panic, and that what it accepts has a role and a
// name for every token.
func FuzzPrincipals(f *testing.F) {
	f.Add([]byte("principals:\n  - {name: a, role: read, token: " + secret + "}\n"))
	f.Add([]byte("principals:\n  - name: b\n    role: operate\n    tenants: [x, y]\n    certificate: \"*\"\n    oidc_email: a@b\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte("\xff\xfe{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePrincipals("p.yaml", data)
		if err != nil {
			return
		}
		for _, found := range p.tokens {
			if found.principal.Name == "" || found.principal.Role == None || found.principal.Tenants != nil && len(found.principal.Tenants) == 0 {
				t.Errorf("%+v of %q", found.principal, data)
			}
		}
		for c, found := range p.others {
			if c.text == "" || found.Name == "" || found.Role == None {
				t.Errorf("%+v: %+v of %q", c, found, data)
			}
		}
		if _, ok := p.byToken(""); ok {
			t.Errorf("the empty token belongs to a principal of %q", data)
		}
	})
}
