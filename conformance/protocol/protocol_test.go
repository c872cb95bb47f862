package protocol_test

import (
	"slices"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/protocol/local"
	"github.com/tapestore/tapestore/tape"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	for _, mode := range []tape.FenceMode{tape.FencePresented, tape.FenceConnection, tape.FenceRequired} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			protocol.Run(t, local.Start(t, embedded.Memory(), mode))
		})
	}
}

// Each case says what it proves, under a name of its own.
func TestCases(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, c := range protocol.Cases() {
		if c.Doc == "" || c.Run == nil || !slices.Contains(protocol.Groups(), c.Group) || slices.Contains(ids, c.ID()) {
			t.Errorf("case %s is there twice, or lacks its doc, its function or a known group", c.ID())
		}
		ids = append(ids, c.ID())
	}
}
