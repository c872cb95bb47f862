// Package tapeserver serves Tape's wire protocol, gRPC service tape.v1.Tape, over
// any store: it translates and decides nothing. The state machines are package
// tape's, the messages package tapepb's. Methods that are not implemented yet
// answer UNIMPLEMENTED and say their name.
//
// # Fencing on the wire
//
// BeginRun and ResumeRun answer the grant of the run's lease twice: in the
// response's field grant (number 1000), and in the response headers
//
//	tape-grant-owner-bin   the lease's owner (binary, since a name may be any text)
//	tape-grant-token       the fencing token, in decimal
//	tape-grant-id          the grant's unique id
//
// A request that writes to a run presents it as the field fence (number 1000) or
// as the request headers
//
//	tape-fence-owner-bin, tape-fence-token, tape-fence-grant
//
// so that an interceptor can add it to a client that knows nothing of fences. All
// three are needed, once each; headers that are incomplete, malformed or differ
// from the field are refused with INVALID_ARGUMENT. Reads need no authority and do
// not look at it. A fence that is not current is refused by the store with
// FAILED_PRECONDITION and an ErrorInfo of reason FENCED, whose metadata names the
// current token and owner: stop, somebody else drives the run.
//
// A BeginRun or ResumeRun that presents the current grant continues under it, as
// a heartbeat; without a fence they take the run over.
package tapeserver
