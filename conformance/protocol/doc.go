// Package protocol is the conformance suite of Tape's wire protocol. It tests a server through gRPC
// calls alone and depends neither on the server's implementation nor on its store. Other modules
// can import it:
//
//	func TestProtocol(t *testing.T) {
//		protocol.Run(t, protocol.Target{Address: "localhost:7878"})
//	}
//
// The command tapestore conformance --protocol ADDRESS runs the same cases.
//
// Each case proves one guarantee of the protocol (T1 to T12) or one numbered client-visible check.
// Where the reference server has a hazard that no client depends on, the case states the rule that
// closes it, and its Doc says so.
//
// All cases share one server. Each case generates names of its own, so the server may hold other
// data. The server should be idle: some cases fire due timers, and lists are read up to the
// server's limit. A case simulates several processes by several connections.
//
// A case whose [Need] the server or its [Target] does not meet is reported as not applicable, with
// the reason. No case is skipped silently.
//
// [Life] drives one agent through every RPC of the service, on a server with an empty store.
//
// Package conformance/protocol/local starts this module's server for the suite. Package
// conformance/protocol/faultyservers holds servers that each break one rule; a test proves that a
// named case catches each of them.
package protocol
