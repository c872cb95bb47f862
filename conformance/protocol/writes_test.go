package protocol

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestWritesCoverTheService checks that zombies try every writing RPC of the service, and that the
// writes cover every row of the table of authorities.
func TestWritesCoverTheService(t *testing.T) {
	t.Parallel()
	z := &prepared{e: &Env{id: "id"}, run: "run", grant: &tapepb.Grant{}}
	methods, names := map[string]bool{}, map[string]bool{}
	for _, w := range z.writes() {
		methods[w.method], names[w.name] = true, true
		m := service().Methods().ByName(protoreflect.Name(w.method))
		if m == nil || m.Input() != w.request.ProtoReflect().Descriptor() {
			t.Errorf("%s has the request %T", w.name, w.request)
		}
	}
	all := service().Methods()
	for i := range all.Len() {
		if name := string(all.Get(i).Name()); methods[name] == isRead(name) {
			t.Errorf("%s is a read: %t, and is among the writes: %t", name, isRead(name), methods[name])
		}
	}
	for name := range tape.Authorities() {
		if !names[name] {
			t.Errorf("%s has an authority and is not among the writes", name)
		}
		method, _, _ := strings.Cut(name, "(")
		if all.ByName(protoreflect.Name(method)) == nil {
			t.Errorf("%s has an authority and is no RPC", name)
		}
	}
}
