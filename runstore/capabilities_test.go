package runstore_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// transparent wraps a store and keeps its capabilities; opaque hides them.
type (
	transparent struct{ runstore.RunStore }
	opaque      struct{ runstore.RunStore }
)

func (t transparent) Unwrap() runstore.RunStore { return t.RunStore }

func TestAs(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	for _, tc := range []struct {
		name  string
		store runstore.RunStore
		want  bool
	}{
		{"a store", s, true},
		{"a wrapper with Unwrap", transparent{s}, true},
		{"two wrappers with Unwrap", transparent{transparent{s}}, true},
		{"a wrapper without", opaque{s}, false},
		{"a wrapper with Unwrap around one without", transparent{opaque{s}}, false},
		{"none", nil, false},
	} {
		if _, ok := runstore.As[runstore.MultiCommitter](tc.store); ok != tc.want {
			t.Errorf("%s: As reports %t, want %t", tc.name, ok, tc.want)
		}
		if own, ok := runstore.As[*memory.Handle](tc.store); ok != tc.want || ok && own != s {
			t.Errorf("%s: As returns the adapter's type %p, %t, want %p", tc.name, own, ok, s)
		}
		if _, ok := runstore.As[runstore.GarbageCollector](tc.store); ok {
			t.Errorf("%s: As reports a capability that the store does not have", tc.name)
		}
	}
}
