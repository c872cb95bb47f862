package runstore

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// URL is a store's address: scheme:address?key=value&…
type URL struct {
	// Scheme chooses the engine.
	Scheme string
	// Address is what stands between the scheme's colon and the question mark,
	// as written: a file for sqlite, //host/database for others. It may hold a
	// password.
	Address string
	// Params are the keys and values after the question mark.
	Params url.Values
}

// ParseURL takes a store URL apart. Its errors never contain the URL, which may
// hold a password.
func ParseURL(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || scheme == "" || strings.ContainsAny(scheme, "/\\. ?@") {
		return URL{}, invalid("store URL", "has no scheme; write scheme:address, for example sqlite:./tape.db (schemes: %s)",
			strings.Join(Schemes(), ", "))
	}
	address, query, _ := strings.Cut(rest, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return URL{}, invalid("store URL", "of scheme %q: what follows the question mark is not key=value&…", scheme)
	}
	return URL{Scheme: scheme, Address: address, Params: params}, nil
}

// String returns the URL without its password and without the values of its
// parameters.
func (u URL) String() string {
	rest, ok := strings.CutPrefix(u.Address, "//")
	if at := strings.LastIndex(rest, "@"); ok && at >= 0 { // the last: a password may hold any character, a slash too
		user, _, _ := strings.Cut(rest[:at], ":")
		return u.Scheme + "://" + user + ":***@" + rest[at+1:]
	}
	return u.Scheme + ":" + u.Address
}

// Known refuses every parameter that is not among keys, and every one that is
// given twice.
func (u URL) Known(keys ...string) error {
	for key, values := range u.Params {
		if strings.Contains(key, "@") {
			return invalid("store URL", "a question mark in a user or password is written %%3F")
		}
		if !slices.Contains(keys, key) {
			if len(keys) == 0 {
				return invalid("store URL", "unknown key %q; %s takes none", clip(key), u.Scheme)
			}
			return invalid("store URL", "unknown key %q; %s knows %s", clip(key), u.Scheme, strings.Join(keys, ", "))
		}
		if len(values) > 1 {
			return invalid("store URL", "key %q is given %d times", key, len(values))
		}
	}
	return nil
}

// Opener opens a store by its URL.
type Opener func(ctx context.Context, u URL) (RunStore, error)

var registry = struct {
	sync.RWMutex
	openers map[string]Opener
}{openers: map[string]Opener{}}

// Register makes an engine known to [Open] under a scheme. An engine's package
// calls it when it is imported. A scheme registered twice panics.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.openers[scheme]; dup {
		panic(fmt.Sprintf("runstore: scheme %q is registered twice", scheme))
	}
	registry.openers[scheme] = open
}

// Schemes returns the schemes of the engines that are linked in, sorted.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	schemes := make([]string, 0, len(registry.openers))
	for s := range registry.openers {
		schemes = append(schemes, s)
	}
	slices.Sort(schemes)
	return schemes
}

// Open opens the store at a URL and creates or migrates its schema as needed.
// Unknown schemes and keys are errors that match ErrInvalid; secrets in the URL
// never get into a message.
func Open(ctx context.Context, rawURL string) (RunStore, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	registry.RLock()
	open, ok := registry.openers[u.Scheme]
	registry.RUnlock()
	if !ok {
		return nil, invalid("store URL", "unknown scheme %q; linked in are: %s (is the engine's package imported?)",
			clip(u.Scheme), strings.Join(Schemes(), ", "))
	}
	return open(ctx, u)
}
