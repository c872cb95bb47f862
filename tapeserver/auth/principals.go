package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxPrincipals is the number of principals and of their credentials of each kind in a file.
	MaxPrincipals = 10_000
	// MaxName is the length of a name, a tenant and an identity, in bytes.
	MaxName = 1024
	// maxToken is the size of the longest token, in bytes. The other headers of a call need the rest of
	// tapeserver.Limits.HeaderBytes.
	maxToken = 4096

	anyCertificate = "*"
)

// Principals are the principals of a file. They do not change.
type Principals struct {
	// salt makes the keys of tokens unpredictable, so that the time of a look-up reveals nothing of a
	// stored hash.
	salt   [sha256.Size]byte
	tokens map[[sha256.Size]byte]token // by HMAC of the token's hash
	others map[credential]*Principal
	// first is where the file has its first credential of each kind in others.
	first map[string]place
}

// place is the line of a credential, and the name of its principal.
type place struct {
	line int
	name string
}

type token struct {
	hash      [sha256.Size]byte
	principal *Principal
}

// credential is a certificate's subject or an identity, with its key in the file.
type credential struct{ kind, text string }

const (
	byToken       = "token"
	byHash        = "token_sha256"
	byCertificate = "certificate"
	bySubject     = "oidc_subject"
	byEmail       = "oidc_email"
)

var (
	credentialKeys = []string{byToken, byHash, byCertificate, bySubject, byEmail}
	principalKeys  = append([]string{"name", "role", "tenants"}, credentialKeys...)

	nameForm  = regexp.MustCompile(`^[A-Za-z0-9_.@/+-]{1,128}$`)
	tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]{20,}$`)
	lineForm  = regexp.MustCompile(`^yaml: line (\d+): `)
)

// ParsePrincipals reads the content of a file; errors show its name, and lines from 1.
//
// Errors: every fault of the file, joined. No error contains a text of the file other than the name
// of a principal.
func ParsePrincipals(name string, data []byte) (*Principals, error) {
	p := &parser{
		file: name, lines: map[string]int{}, from: map[credential]int{},
		all: &Principals{tokens: map[[sha256.Size]byte]token{}, others: map[credential]*Principal{}, first: map[string]place{}},
	}
	_, _ = rand.Read(p.all.salt[:]) // never fails
	p.read(data)
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return p.all, nil
}

type parser struct {
	file   string
	faults []error
	all    *Principals
	lines  map[string]int     // of names
	from   map[credential]int // lines of credentials
}

func (p *parser) fault(line int, format string, args ...any) {
	if len(p.faults) < 20 { // a file of another kind has thousands
		p.faults = append(p.faults, fmt.Errorf("%s:%d: %s", p.file, line, fmt.Sprintf(format, args...)))
	}
}

func (p *parser) read(data []byte) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var document, next yaml.Node
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF):
		p.fault(1, "is empty; want a list of principals")
		return
	case err != nil: // its text may be a piece of a secret
		line := 1
		if m := lineForm.FindStringSubmatch(err.Error()); m != nil {
			_, _ = fmt.Sscan(m[1], &line)
		}
		p.fault(line, "is not YAML, here or in the line before")
		return
	}
	if err := d.Decode(&next); !errors.Is(err, io.EOF) {
		p.fault(max(1, next.Line), "more follows the document; a file has one")
		return
	}
	fields := p.mapping(document.Content[0], "the file", []string{"principals"})
	list := fields["principals"]
	switch {
	case list == nil:
		p.fault(1, "has no principals")
	case list.Kind != yaml.SequenceNode || len(list.Content) == 0:
		p.fault(list.Line, "principals is not a list with an element for each principal")
	case len(list.Content) > MaxPrincipals:
		p.fault(list.Line, "principals has %d elements; the most are %d", len(list.Content), MaxPrincipals)
	default:
		for _, n := range list.Content {
			p.principal(n)
		}
	}
}

// mapping returns the values of a mapping by key, and reports keys that are unknown or given twice.
func (p *parser) mapping(n *yaml.Node, what string, keys []string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		p.fault(n.Line, "%s is no mapping; the keys are %s", what, strings.Join(keys, ", "))
		return values
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(keys, key.Value):
			p.fault(key.Line, "%s has an unknown key; the keys are %s", what, strings.Join(keys, ", "))
		case values[key.Value] != nil:
			p.fault(key.Line, "%s is given twice", key.Value)
		default:
			values[key.Value] = n.Content[i+1]
		}
	}
	return values
}

func (p *parser) principal(n *yaml.Node) {
	fields := p.mapping(n, "the principal", principalKeys)
	to := &Principal{}
	if to.Name = p.single(n, fields, "name"); to.Name != "" {
		if !nameForm.MatchString(to.Name) {
			p.fault(fields["name"].Line, "name has 1 to 128 letters, digits and _.@/+- only")
			to.Name = ""
		} else if line, ok := p.lines[to.Name]; ok {
			p.fault(n.Line, "the name %s is given to another principal in line %d", to.Name, line)
		}
		p.lines[to.Name] = n.Line
	}
	if role := p.single(n, fields, "role"); role != "" {
		if to.Role = roleOf(role); to.Role == None {
			p.fault(fields["role"].Line, "role is read, drive or operate")
		}
	}
	if tenants := fields["tenants"]; tenants != nil {
		to.Tenants = p.texts(tenants, "tenants")
	}
	found := 0
	for _, kind := range credentialKeys {
		if value := fields[kind]; value != nil {
			for _, text := range p.texts(value, kind) {
				p.credential(value.Line, kind, text, to)
			}
			found++
		}
	}
	if found == 0 && n.Kind == yaml.MappingNode {
		p.fault(n.Line, "the principal has no credential; give it one of %s", strings.Join(credentialKeys, ", "))
	}
}

// single returns the text of a key that a principal needs; "" after a fault.
func (p *parser) single(n *yaml.Node, fields map[string]*yaml.Node, key string) string {
	value := fields[key]
	if value == nil {
		if n.Kind == yaml.MappingNode {
			p.fault(n.Line, "the principal has no %s", key)
		}
		return ""
	}
	if value.Kind != yaml.ScalarNode {
		p.fault(value.Line, "%s is a text", key)
		return ""
	}
	if texts := p.texts(value, key); len(texts) == 1 {
		return texts[0]
	}
	return ""
}

// texts returns a text or a list of texts. The result is not nil.
func (p *parser) texts(n *yaml.Node, key string) []string {
	all := []string{}
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	if len(list) == 0 || len(list) > MaxPrincipals {
		p.fault(n.Line, "%s has %d elements, the limits are 1 and %d", key, len(list), MaxPrincipals)
		return all
	}
	for _, e := range list {
		switch {
		case e.Kind != yaml.ScalarNode || e.ShortTag() != "!!str" || e.Style&yaml.TaggedStyle != 0:
			p.fault(e.Line, "%s is a text; write one that looks like a number or another value in quotes", key)
		case e.Value == "" || !utf8.ValidString(e.Value) || key != byToken && len(e.Value) > MaxName:
			p.fault(e.Line, "%s is empty, is not UTF-8, or has more than %d bytes", key, MaxName)
		default:
			all = append(all, e.Value)
		}
	}
	return all
}

// credential adds a credential of a principal.
func (p *parser) credential(line int, kind, text string, to *Principal) {
	var hash [sha256.Size]byte
	switch kind {
	case byToken:
		if !tokenForm.MatchString(text) || len(text) > maxToken {
			p.fault(line, "token has 20 to 4096 letters, digits and -._~+/= only; openssl rand -hex 32 makes one")
			return
		}
		hash = sha256.Sum256([]byte(text))
	case byHash:
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(hash) {
			p.fault(line, "token_sha256 is 64 hexadecimal digits: printf %%s TOKEN | sha256sum")
			return
		}
		hash = [sha256.Size]byte(raw)
	}
	id := credential{kind, text}
	if kind == byToken || kind == byHash {
		id = credential{byHash, string(hash[:])} // a token and its hash are one credential
	}
	if former, ok := p.from[id]; ok {
		p.fault(line, "%s is given in line %d too", kind, former)
		return
	}
	p.from[id] = line
	if id.kind == byHash {
		p.all.tokens[p.all.key(hash)] = token{hash, to}
		return
	}
	p.all.others[id] = to
	if _, ok := p.all.first[kind]; !ok {
		p.all.first[kind] = place{line, to.Name}
	}
}

func (a *Principals) key(hash [sha256.Size]byte) [sha256.Size]byte {
	mac := hmac.New(sha256.New, a.salt[:])
	_, _ = mac.Write(hash[:]) // a hash returns no error
	return [sha256.Size]byte(mac.Sum(nil))
}

// byToken returns the principal of a bearer token, in a time that does not depend on the tokens in
// the file.
func (a *Principals) byToken(text string) (Principal, bool) {
	hash := sha256.Sum256([]byte(text))
	found, ok := a.tokens[a.key(hash)]
	if !ok || subtle.ConstantTimeCompare(found.hash[:], hash[:]) != 1 {
		return Principal{}, false
	}
	return *found.principal, true
}

// byCertificate returns the principal of a verified client certificate.
func (a *Principals) byCertificate(c *x509.Certificate) (Principal, bool) {
	subject, err := subjectOf(c)
	if err != nil {
		return Principal{}, false
	}
	found := a.others[credential{byCertificate, subject}]
	if found == nil || subject == anyCertificate {
		found = a.others[credential{byCertificate, anyCertificate}]
	}
	if found == nil {
		return Principal{}, false
	}
	p := *found
	p.Expires = c.NotAfter
	return p, true
}

// subjectOf returns the whole subject of a certificate. Certificate.Subject would leave the order and
// repeated attributes out.
func subjectOf(c *x509.Certificate) (string, error) {
	var subject pkix.RDNSequence
	rest, err := asn1.Unmarshal(c.RawSubject, &subject)
	if err == nil && len(rest) > 0 {
		err = errors.New("trailing data")
	}
	return subject.String(), err
}

// byIdentity returns the principal of an identity of the issuer: of its subject or, if the issuer has
// verified it, of its e-mail address.
func (a *Principals) byIdentity(subject, email string, verified bool) (Principal, bool) {
	found := a.others[credential{bySubject, subject}]
	if found == nil && verified && email != "" {
		found = a.others[credential{byEmail, email}]
	}
	if found == nil {
		return Principal{}, false
	}
	return *found, true
}
