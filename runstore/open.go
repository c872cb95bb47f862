package runstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Opener opens a store by its URL.
type Opener func(ctx context.Context, u URL) (RunStore, error)

var registry = struct {
	sync.RWMutex
	openers map[string]Opener
}{openers: map[string]Opener{}}

// Register registers an engine with [Open] under a scheme, in lower case. An engine's package
// calls it from its init function. Registering a scheme twice panics.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.openers[scheme]; dup {
		panic(fmt.Sprintf("runstore: scheme %q is registered twice", scheme))
	}
	registry.openers[scheme] = open
}

// Schemes returns the registered schemes, sorted.
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

// Open opens the store at a URL and creates or migrates its schema as needed. Unknown schemes and
// keys are errors that match ErrInvalid. The scheme is not case-sensitive. Error messages contain
// no secrets of the URL (see [URL.String]).
func Open(ctx context.Context, rawURL string) (RunStore, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	registry.RLock()
	open, ok := registry.openers[u.Scheme]
	registry.RUnlock()
	if !ok {
		return nil, invalid("store URL", "unknown scheme %q; the registered schemes are: %s (is the engine's package imported?)",
			clip(u.Scheme), strings.Join(Schemes(), ", "))
	}
	return open(ctx, u)
}
