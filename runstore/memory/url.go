package memory

import (
	"context"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

func init() { runstore.Register("memory", open) }

var named = struct {
	sync.Mutex
	stores map[string]*Store
}{stores: map[string]*Store{}}

// open opens memory: (a store of its own) or memory:NAME (shared within the process until it
// exits).
func open(_ context.Context, u runstore.URL) (runstore.RunStore, error) {
	if err := u.RejectUnknownParams(); err != nil {
		return nil, err
	}
	if u.Address == "" {
		return New(nil).Open(), nil
	}
	named.Lock()
	defer named.Unlock()
	s := named.stores[u.Address]
	if s == nil {
		s = New(nil)
		named.stores[u.Address] = s
	}
	return s.Open(), nil
}
