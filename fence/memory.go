package fence

import (
	"context"
	"strings"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// defaultMaxResources is 100,000: at the longest names some 60 MB, at names of 32 bytes 10 MB.
const defaultMaxResources = 100_000

// MemoryOptions configures a [Memory]. A zero field takes its default.
type MemoryOptions struct {
	// MaxResources is the number of resources that the checker remembers; 100,000 by default. At the
	// limit a new resource is refused with a [FullError], and those that are known are checked as
	// before.
	MaxResources int
}

// Memory is a [Checker] in the memory of one process.
//
// It never drops a token to make room, because the next stale token of that resource would pass. At
// its limit it refuses new resources instead; [Memory.Forget] is the only way to drop one.
//
// Its memory ends with the process. After a restart, and on another replica, a stale token is
// accepted until the first newer one was seen there. Use [SQL] where that matters.
type Memory struct {
	limit int

	mu   sync.Mutex
	seen map[string]runstore.Token // the highest token, by resource
}

var _ Checker = (*Memory)(nil)

// NewMemory returns a checker that has seen no token; nil options mean the defaults. Errors:
// ErrInvalid.
func NewMemory(opts *MemoryOptions) (*Memory, error) {
	m := &Memory{limit: defaultMaxResources, seen: make(map[string]runstore.Token)}
	if opts == nil || opts.MaxResources == 0 {
		return m, nil
	}
	if opts.MaxResources < 0 {
		return nil, invalid("MaxResources", "%d is negative", opts.MaxResources)
	}
	m.limit = opts.MaxResources
	return m, nil
}

// Check implements [Checker]. It never returns ErrUnknownOutcome.
func (m *Memory) Check(ctx context.Context, resource string, token runstore.Token) error {
	if err := ready(ctx, Presented{resource, token}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	current, known := m.seen[resource]
	switch {
	case token < current:
		return &StaleError{Resource: resource, Presented: token, Current: current}
	case !known && len(m.seen) >= m.limit:
		return &FullError{Resource: resource, Limit: m.limit}
	}
	m.seen[strings.Clone(resource)] = token // not the buffer that the resource may be a part of
	return nil
}

// Forget drops the token of a resource and makes room for another. Every token of that resource
// passes afterwards, stale ones included. So call it only when no request for the resource can still
// arrive, for example long after its run has ended.
func (m *Memory) Forget(resource string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, resource)
}

// Len returns the number of resources that the checker remembers, for a gauge to compare with the
// limit.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}
