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
// Only [URL.String] is fit for logs and messages. Address and Params may hold secrets.
type URL struct {
	// Scheme chooses the engine, in lower case.
	Scheme string
	// Address is what stands between the scheme's colon and the question mark,
	// as written: a file for sqlite, //host/database for others. It may hold a
	// password.
	Address string
	// Params are the keys and values after the question mark.
	Params url.Values
}

var schemeForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+-]*$`)

// ParseURL takes a store URL apart. The scheme may be written in capitals. Its errors
// never contain the URL, which may hold a password.
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

// mask stands in messages for what may be a secret.
const mask = "***"

// What String shows of a URL. Everything else may be a password, or a piece of one whose
// special characters were not percent-encoded.
var (
	plainUser = regexp.MustCompile(`^[\w.+-]*$`)
	plainHost = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?(,(\[[0-9a-fA-F:.]+\]|[\w.-]*)(:\d{1,5})?)*$`)
	plainPath = regexp.MustCompile(`^[\w./~+ -]*$`)
	driveForm = regexp.MustCompile(`^[a-zA-Z]:[\\/]`)
)

// String returns the URL for logs and messages. It leaves parameters out and writes ***
// for the password and for every part that could hold one: whatever stands where a
// mistyped URL may have put it. It decides by what a part looks like, so it also hides
// harmless names that look odd.
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

// passwordCut reports whether the question mark that ended the address may be a
// password's own: an at sign follows.
func (u URL) passwordCut() bool {
	for key, values := range u.Params {
		if strings.Contains(key, "@") || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "@") }) {
			return true
		}
	}
	return false
}

// maskAuthority returns user:***@host/path with what may be a secret masked.
func maskAuthority(s string) string {
	shown := ""
	if at := strings.LastIndex(s, "@"); at >= 0 { // the last: a password may hold any character, a slash too
		user, _, _ := strings.Cut(s[:at], ":")
		if !plainUser.MatchString(strings.ReplaceAll(user, "%40", "")) { // an IAM user's name is an address
			user = mask
		}
		shown = user + ":" + mask + "@"
		if strings.ContainsAny(s[:at], " =&;") { // the at sign may be that of …/db password=…
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

// RejectUnknownParams refuses every parameter that is not among keys, and every one that is
// given twice. Its errors contain no value, and a key only where that cannot be a piece
// of a secret.
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
