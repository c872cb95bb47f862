// Package fencegrpc carries fencing tokens over gRPC: interceptors of the client write them into the
// metadata of a call, and interceptors of the server check them.
//
// The metadata keys are fencing-token and fencing-resource, with values as in package fencehttp. A
// refusal has an ErrorInfo of domain [Domain]:
//
//	code                reason             the handler has not run, because
//	FAILED_PRECONDITION FENCED             the token is stale; metadata: resource, presented, current
//	INVALID_ARGUMENT    FENCE_MISSING      there is no fence, and Options.Unfenced does not let it through
//	INVALID_ARGUMENT    FENCE_MALFORMED    a value is malformed, repeated or missing, or names another resource
//	RESOURCE_EXHAUSTED  FENCE_FULL         the checker remembers no further resource
//	UNAVAILABLE         FENCE_UNAVAILABLE  the checker could not decide; a repeat is safe
//	CANCELLED, DEADLINE_EXCEEDED           FENCE_UNAVAILABLE, and the call has ended
//
// The metadata of FENCED are the resource and the token that the call presented, and the current
// token. If a third service refused the server's own fence, the server may forward that refusal. So the
// client's interceptors compare the metadata with the fence that they presented.
//
// A stream is checked when it begins, before each message that the handler receives, and at the end
// of these messages. So a stream opened under an old token is refused at the client's next message or
// at its half-close. The takeover alone ends no stream: one whose handler only sends, or waits in
// RecvMsg, goes on. A handler may have acted before it is refused; what is UNAVAILABLE or
// RESOURCE_EXHAUSTED above is then UNKNOWN, so that no client repeats the stream automatically.
//
// Package fence says what a check guarantees and what it does not.
package fencegrpc
