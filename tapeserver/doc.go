// Package tapeserver serves Tape's wire protocol, the gRPC service tape.v1.Tape, over any store. It
// only translates: package tape has the state machines, package tapepb the messages, and package
// matcher drives reactions.
//
// The server also has gRPC's health service and reflection. [Limits] bounds the resources that
// clients can make the server hold, and [Server.Serve] the time that it takes to stop.
//
// # Fencing on the wire
//
// BeginRun and ResumeRun return the grant of the run's lease twice: in the response's field grant
// (number 1000), and in the response headers
//
//	tape-grant-owner-bin   the lease's owner (binary, since a name may be any text)
//	tape-grant-token       the fencing token, in decimal
//	tape-grant-id          the grant's unique id
//
// A request that writes to a run presents it as the field fence (number 1000) or as the request
// headers
//
//	tape-fence-owner-bin, tape-fence-token, tape-fence-grant
//
// so that an interceptor can add it to a client that does not support fences. All three headers are
// needed, once each; headers that are incomplete, malformed or differ from the field are refused
// with INVALID_ARGUMENT. Reads need no authority and ignore the fence. The store refuses a fence
// that is not current with FAILED_PRECONDITION and an ErrorInfo of reason FENCED, whose metadata
// names the current token and owner: the caller must stop, another driver holds the run.
// BeginEffect returns PERMISSION_DENIED with the same reason; so do all of its refusals that
// resending cannot change, because clients act after every other status. A request that cannot be
// decoded has the reason INVALID, and a panic UNKNOWN_OUTCOME. Transient faults, limits and unknown
// outcomes keep their status. gRPC itself answers some messages before the server's code sees them:
// RESOURCE_EXHAUSTED above Options.MaxMessageBytes, and INTERNAL or UNIMPLEMENTED for one that it cannot
// decompress. Tape's Python plugin then runs an idempotent inline tool, so clients must keep the
// requests of effects within the limit below.
//
// A BeginRun or ResumeRun that presents the current grant continues under it, as a heartbeat. Without
// a fence BeginRun takes the run over; so does ResumeRun, unless the caller is the owner of the live
// lease, or the run waits at a gate and has no signal to consume. With the field wait_for_lease
// (number 1001) a live lease of another owner is left alone: ABORTED, reason LEASE_HELD. So is one
// whose grant the connection has. ResumeRun with the field and without a fence leaves every live lease
// alone and renews none: the caller's name may be that of a process that has died.
//
// With tape.FenceConnection the server presents, for requests without a fence, the grant that it
// returned on their connection; see grants.
//
// # Security
//
// With Options.TLS the server speaks TLS, from its first moment (ServeStarting). With Options.Auth it
// authenticates every call but a health check before it reads the request, checks the role that the
// method needs. A principal that is limited to tenants reaches the runs of these tenants, and gets the
// part of lists and feeds that concerns them. docs/security.md has the roles and the threats. Refusals have the reason UNAUTHENTICATED or PERMISSION_DENIED in their
// ErrorInfo, and nothing was applied.
//
// # Limits
//
// Every answer fits into 4 MiB, the default limit of gRPC clients. A request that would cause a
// larger answer is refused with INVALID_ARGUMENT and an ErrorInfo of reason TOO_LARGE, whose
// metadata names the field; the message names the limit:
//
//	request_json of an effect                      2,000,000 bytes
//	response_json and error_json together          2,000,000 bytes
//	the names of an effect, as JSON                65,536 bytes
//	a decision, all texts together                 4,000,000 bytes
//	rationale, model and policy version, as JSON   1,048,576 bytes
//	key, identity, scopes and labels, as JSON      262,144 bytes
//	detail_json of EndRun                          2,000,000 bytes
//	payload_json of an obligation                  2,000,000 bytes
//	effect_key and kind of an obligation, as JSON  65,536 bytes
//	compensator_ref                                4,096 bytes
//	claimer                                        1,024 bytes
//	error of an obligation's attempt (truncated)   131,072 bytes
//	result_json of an obligation                   1,000,000 bytes
//	error of a dispatch (truncated)                8,192 bytes
//	external_ref                                   4,096 bytes
//	payload_json of AwaitSignal                    1,000,000 bytes
//	resolution_json                                2,000,000 bytes
//	state_json of a session, with its deltas       2,000,000 bytes
//	content_json and actions_json together         2,000,000 bytes
//	predicate_cel                                  4,096 bytes
//	subject_pattern of a feed                      1,024 bytes
//
// The two truncated texts are never refused. No limit depends on what is stored already: the size
// of an effect's request does not reduce the room for its outcome. The message of a status has up
// to 1,024 bytes.
package tapeserver
