package runstore

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// URL is a store's address: scheme:address?key=value&…
//
// Only the result of [URL.String] may appear in logs and messages. Address and Params may contain
// secrets.
type URL struct {
	// Scheme chooses the engine, in lower case.
	Scheme string
	// Address is the text between the scheme's colon and the question mark, as written: a file for
	// sqlite, //host/database for others. It may contain a password.
	Address string
	// Params are the keys and values after the question mark.
	Params url.Values
}

var schemeForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+-]*$`)

// ParseURL parses a store URL. The scheme is not case-sensitive. Error messages never contain the
// URL, which may hold a password.
func ParseURL(s string) (URL, error) {
	if s != strings.TrimSpace(s) {
		return URL{}, invalid("store URL", "begins or ends with a space or a line break")
	}
	if strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "'") {
		return URL{}, invalid("store URL", "begins with a quotation mark, which some readers of env files keep; write the URL without")
	}
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || !schemeForm.MatchString(scheme) {
		return URL{}, invalid("store URL", "has no scheme; write scheme:address, for example sqlite:./tape.db (schemes: %s)",
			strings.Join(Schemes(), ", "))
	}
	scheme = strings.ToLower(scheme)
	address, query, _ := strings.Cut(rest, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return URL{}, invalid("store URL", "of scheme %q: what follows the question mark is not key=value&…", clip(scheme))
	}
	return URL{Scheme: scheme, Address: address, Params: params}, nil
}

// mask replaces text that may be a secret.
const mask = "***"

// The parts of a URL that String shows. Any other text may be a password, or a piece of a password
// whose special characters were not percent-encoded.
var (
	plainUser = regexp.MustCompile(`^[\w.+-]*$`)
	plainHost = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?(,(\[[0-9a-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?)*$`)
	plainPath = regexp.MustCompile(`^[\w./~+ -]*$`)
	driveForm = regexp.MustCompile(`^[a-zA-Z]:[\\/]`)
)

// String returns the URL for logs and messages. It omits parameters and replaces with *** the
// password and every part where a mistyped URL may have put a password. It decides by the form of
// a part, so it also masks harmless names of an unusual form.
func (u URL) String() string {
	authority, ok := strings.CutPrefix(u.Address, "//")
	switch {
	case u.passwordCut():
		return u.Scheme + ":" + mask
	case ok:
		return u.Scheme + "://" + maskAuthority(authority)
	case u.Address == ":memory:":
		return u.Scheme + ":" + u.Address
	}
	path := u.Address[len(driveForm.FindString(u.Address)):]
	if strings.ContainsAny(path, `@=:"'`) || strings.ContainsFunc(path, isControl) {
		return u.Scheme + ":" + mask
	}
	return u.Scheme + ":" + u.Address
}

// passwordCut reports whether the question mark that ended the address may be part of a password:
// it returns true when an at sign follows.
func (u URL) passwordCut() bool {
	for key, values := range u.Params {
		if strings.Contains(key, "@") || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "@") }) {
			return true
		}
	}
	return false
}

// maskAuthority returns user:***@host/path, with the parts masked that may be a secret.
func maskAuthority(s string) string {
	shown := ""
	if at := strings.LastIndex(s, "@"); at >= 0 { // the last: a password may contain any character, even a slash
		user, _, _ := strings.Cut(s[:at], ":")
		if !plainUser.MatchString(strings.ReplaceAll(user, "%40", "")) { // an IAM user's name is an address
			user = mask
		}
		shown = user + ":" + mask + "@"
		if strings.ContainsAny(s[:at], " =&;") { // the at sign may belong to …/db password=…
			return shown + mask
		}
		s = s[at+1:]
	}
	host, path, slash := strings.Cut(s, "/")
	if !plainHost.MatchString(host) { // user:password without a host: the path may belong to it
		return shown + mask
	}
	shown += host
	if slash {
		shown += "/"
	}
	if decoded, err := url.PathUnescape(path); err != nil || !plainPath.MatchString(decoded) {
		return shown + mask
	}
	return shown + path
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

var plainKey = regexp.MustCompile(`^[a-zA-Z_]+$`)

// RejectUnknownParams returns an error for a parameter that is not among keys, or that is given
// twice. Its message contains no value, and contains a key only where the key cannot be a piece of
// a secret.
func (u URL) RejectUnknownParams(keys ...string) error {
	for _, key := range slices.Sorted(maps.Keys(u.Params)) {
		known := slices.Contains(keys, key)
		switch {
		case known && len(u.Params[key]) > 1:
			return invalid("store URL", "key %q is given %d times", key, len(u.Params[key]))
		case known:
			continue
		case u.passwordCut():
			return invalid("store URL", "a question mark in a user or password is written %%3F")
		}
		shown := "has an unknown key"
		if plainKey.MatchString(key) && u.Params.Get(key) != "" {
			shown = fmt.Sprintf("unknown key %q", clip(key))
		}
		if len(keys) == 0 {
			return invalid("store URL", "%s; %s takes none", shown, u.Scheme)
		}
		return invalid("store URL", "%s; %s knows %s", shown, u.Scheme, strings.Join(keys, ", "))
	}
	return nil
}
