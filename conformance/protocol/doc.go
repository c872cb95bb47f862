// Package protocol is the conformance suite of Tape's wire protocol. It tests a server through
// gRPC calls alone, and knows neither the server nor its store. It is importable:
//
//	func TestProtocol(t *testing.T) {
//		protocol.Run(t, protocol.Target{Address: "localhost:7878"})
//	}
//
// The command tapestore conformance --protocol ADDRESS runs the same cases.
//
// A case proves one of the guarantees of the protocol (T1 to T12), or one of the
// client-visible checks, by its number. Where the reference server has a hazard that no client
// needs, the case states the rule that closes it, and its Doc says so.
//
// All cases share one server. Each makes names of its own, so that the server may hold other data.
// It should not be in use: some cases fire timers that are due, and lists are read up to the
// server's limit. A case stands for several processes by several connections.
//
// A case that needs what a server or its [Target] does not offer is reported as not applicable,
// with the reason; nothing is skipped silently.
//
// [Life] is one agent's life, with every RPC of it, on a server with an empty store.
//
// Package conformance/protocol/local starts this module's server for the suite. Package
// conformance/protocol/faultyservers holds servers that each break one rule; a test proves that a
// named case catches each of them.
package protocol
