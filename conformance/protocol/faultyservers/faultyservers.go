// Package faultyservers holds servers of Tape's protocol that are broken on purpose. Each is this
// module's server behind a proxy that breaks one rule, the way servers break it in practice, and
// names the case of the protocol suite that must catch it. A suite that passes one of them proves
// nothing about other servers.
package faultyservers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/protocol/local"
	"github.com/tapestore/tapestore/tape"
)

// Server is a server that breaks one rule.
type Server struct {
	// Name states the fault, in small letters with hyphens.
	Name string
	// Breaks states in one sentence which rule the server breaks, and how.
	Breaks string
	// Case is the ID of the case that must catch it.
	Case string

	fault func() fault
}

// Servers returns all faulty servers.
func Servers() []Server {
	return slices.Concat(claimServers(), firstServers(), fenceServers(), lostServers(), cursorServers(), matchServers())
}

// Start serves s on an empty store until the end of the test.
func (s Server) Start(t conformance.T) protocol.Target {
	t.Helper()
	behind := local.Start(t, embedded.Memory(), tape.FencePresented)
	return protocol.Target{Address: startProxy(t, behind.Address, s.fault())}
}

// chances is how often Check runs a case against a faulty server: 4. Some faults show only when two
// calls coincide, which a case makes likely but cannot guarantee.
const chances = 4

// Check runs the case that must catch s against it. The error says that the case passed, panicked
// or could not run.
func Check(ctx context.Context, s Server) error {
	c, ok := protocol.Find(s.Case)
	if !ok {
		return fmt.Errorf("faulty server %s: there is no case %q", s.Name, s.Case)
	}
	var result conformance.Result
	var err error
	for range chances {
		broke, messages := conformance.RunPlain(ctx, s.Name, func(t conformance.T) {
			result, err = protocol.RunCase(t.Context(), s.Start(t), c)
		})
		if broke {
			return fmt.Errorf("faulty server %s did not start: %s", s.Name, strings.Join(messages, "; "))
		}
		if err != nil || result.Status != conformance.Passed || ctx.Err() != nil {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("faulty server %s: %w", s.Name, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("faulty server %s: %w", s.Name, err)
	case result.Status != conformance.Failed:
		return fmt.Errorf("faulty server %s: %s does not catch it: %s %s", s.Name, s.Case, result.Status, result.Reason)
	case strings.Contains(result.Reason, "panic: "):
		return fmt.Errorf("faulty server %s: %s panicked instead of catching it: %s", s.Name, s.Case, result.Reason)
	}
	return nil
}

// Sound returns the proxy without a fault. It passes the whole suite.
func Sound() Server {
	return Server{Name: "sound", Breaks: "nothing", fault: func() fault { return fault{} }}
}
