package conformance_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestOvertakingStores checks that a case with Overtakes gets its store from NewOvertaking, if the
// harness has it, and every other case from New, whatever the names of the cases are.
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
