package tapeserver

import (
	"fmt"
	"maps"
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
		case (a.subject == oneRun || a.subject == runOrSession) && m.Input().Fields().ByName("run_id") == nil:
			t.Errorf("requests of %s have no run_id", m.Name())
		case a.subject == runOrSession && m.Name() != "SendSignal":
			t.Errorf("%s sends no signal", m.Name())
		case a.subject == filtered && !m.IsStreamingServer() && (m.Input().Fields().ByName("page_token") == nil || m.Output().Fields().ByName("next_page_token") == nil):
			t.Errorf("%s has no pages", m.Name())
		case a.subject != filtered && m.Input().Fields().ByName("page_token") != nil:
			t.Errorf("%s has pages, and is not filtered", m.Name())
		case (a.subject == shared) != (a.why != ""):
			t.Errorf("%s is refused to limited principals: %v, with the reason %q", m.Name(), a.subject == shared, a.why)
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

// TestRolesAreDocumented compares the table with those of docs/security.md.
func TestRolesAreDocumented(t *testing.T) {
	t.Parallel()
	var roles, refused strings.Builder
	roles.WriteString("\n| role | RPCs that name one run | lists and feeds | RPCs on what tenants share |\n| --- | --- | --- | --- |\n")
	for role := auth.Read; role <= auth.Operate; role++ {
		names := map[subjectOfCall][]string{}
		for name, a := range accesses {
			if a.role == role {
				subject := a.subject
				if subject != filtered && subject != shared {
					subject = oneRun
				}
				names[subject] = append(names[subject], name)
			}
		}
		fmt.Fprintf(&roles, "| %v | %s | %s | %s |\n", role, sorted(names[oneRun]), sorted(names[filtered]), sorted(names[shared]))
	}
	refused.WriteString("\n| RPCs that are refused to principals with `tenants` | because |\n| --- | --- |\n")
	why := map[whyRefused][]string{}
	for name, a := range accesses {
		if a.subject == shared {
			why[a.why] = append(why[a.why], name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(&refused, "| %s | %s |\n", sorted(why[reason]), reason)
	}
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for mark, want := range map[string]string{"roles": roles.String(), "refused": refused.String()} {
		_, rest, _ := strings.Cut(string(page), "<!-- "+mark+" -->")
		table, _, found := strings.Cut(rest, "<!-- end of "+mark+" -->")
		if !found || table != want {
			t.Errorf("the table %s of docs/security.md is\n%s\nwant\n%s", mark, table, want)
		}
	}
}

// sorted returns names in alphabetical order.
func sorted(names []string) string {
	slices.Sort(names)
	return strings.Join(names, ", ")
}
