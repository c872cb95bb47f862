package tapeserver

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestEveryMethodHasAnAccess compares the table with the descriptors: a method without an entry would
// be refused to all callers, and an entry without its field would let a tenant out.
func TestEveryMethodHasAnAccess(t *testing.T) {
	t.Parallel()
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		a, ok := accessOf(fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
		switch {
		case !ok:
			t.Errorf("%s has no access", m.Name())
		case a.role < auth.Read || a.role > auth.Operate || a.subject == noRun:
			t.Errorf("%s: %+v", m.Name(), a)
		case a.subject == oneRun && m.Input().Fields().ByName("run_id") == nil:
			t.Errorf("requests of %s have no run_id", m.Name())
		case a.subject == newRun && m.Name() != "BeginRun":
			t.Errorf("%s begins no run", m.Name())
		}
	}
	if len(accesses) != methods.Len() {
		t.Errorf("%d entries for %d methods", len(accesses), methods.Len())
	}
	for _, method := range []string{"", "/", "/tape.v1.Tape/", "/tape.v1.Tape/getRun", "/tape.v1.Tape/x/GetRun", "/tape.v2.Tape/GetRun", "GetRun", "/GetRun"} {
		if a, ok := accessOf(method); ok {
			t.Errorf("%q has the access %+v", method, a)
		}
	}
}

// TestRolesAreDocumented compares the table with the one of docs/security.md.
func TestRolesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- roles -->")
	table, _, found := strings.Cut(rest, "<!-- end of roles -->")
	if !found {
		t.Fatal("docs/security.md has no table of roles")
	}
	var want strings.Builder
	want.WriteString("\n| role | RPCs that name one run | RPCs that concern several runs, or what runs share |\n| --- | --- | --- |\n")
	for role := auth.Read; role <= auth.Operate; role++ {
		var one, several []string
		for name, a := range accesses {
			switch {
			case a.role != role:
			case a.subject == severalRuns:
				several = append(several, name)
			default:
				one = append(one, name)
			}
		}
		slices.Sort(one)
		slices.Sort(several)
		fmt.Fprintf(&want, "| %v | %s | %s |\n", role, strings.Join(one, ", "), strings.Join(several, ", "))
	}
	if table != want.String() {
		t.Errorf("the table of docs/security.md is\n%s\nwant\n%s", table, want.String())
	}
}
