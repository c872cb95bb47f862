package conformance_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A case that overtakes gets its store from NewOvertaking, if the harness has it; every
// other case gets it from New. The name of a case does not matter.
func TestOvertakingStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		overtakes, offered bool
		want               string
	}{
		{false, false, "New"}, {false, true, "New"}, {true, false, "New"}, {true, true, "NewOvertaking"},
	} {
		t.Run(fmt.Sprintf("overtakes %t, offered %t", test.overtakes, test.offered), func(t *testing.T) {
			t.Parallel()
			var made []string
			named := func(name string) func(conformance.T) conformance.Instance {
				return func(conformance.T) conformance.Instance {
					made = append(made, name)
					s := memory.New(nil)
					return conformance.Instance{Open: func(context.Context) (runstore.RunStore, error) { return s.Open(), nil }}
				}
			}
			h := conformance.Harness{New: named("New")}
			if test.offered {
				h.NewOvertaking = named("NewOvertaking")
			}
			c := conformance.Case{Guarantee: "I3", Name: "case", Overtakes: test.overtakes, Run: func(conformance.T, *conformance.Env) {}}
			if r := conformance.RunCase(t.Context(), h, c); r.Status != conformance.Passed || fmt.Sprint(made) != fmt.Sprint([]string{test.want}) {
				t.Errorf("got %v (%s) with a store of %v, want one of %s", r.Status, r.Reason, made, test.want)
			}
		})
	}
}

// A case may get a store that others have used, unless it reads the past.
func TestUsedStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		needs []conformance.Need
		want  string
	}{{nil, "NewUsed"}, {[]conformance.Need{conformance.NeedStale}, "New"}} {
		var made []string
		named := func(name string) func(conformance.T) conformance.Instance {
			return func(conformance.T) conformance.Instance {
				made = append(made, name)
				s := memory.New(nil)
				return conformance.Instance{Open: func(context.Context) (runstore.RunStore, error) { return s.Open(), nil }}
			}
		}
		h := conformance.Harness{New: named("New"), NewUsed: named("NewUsed")}
		c := conformance.Case{Guarantee: "I5", Name: "case", Needs: test.needs, Run: func(conformance.T, *conformance.Env) {}}
		conformance.RunCase(t.Context(), h, c)
		if fmt.Sprint(made) != fmt.Sprint([]string{test.want}) {
			t.Errorf("needs %v: a store of %v, want one of %s", test.needs, made, test.want)
		}
	}
}
