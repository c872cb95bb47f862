package tape

import "github.com/tapestore/tapestore/runstore"

// RunLeaseVector describes the lease of a run that a driver holds over the wire.
func RunLeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the lease of the run",
		Payload:     "the engine's; the grant id is a record of the run, too, from which a heartbeat without a fence is built",
		Enforcement: "by the store, at each write of a request that presents the grant; the fence mode of the server says which requests must",
		Token:       "the run's",
		Handoff:     "takeover: BeginRun preempts the holder, unless the request waits for the end of the lease",
	}
}

// EffectVector describes the right to execute an effect, which the first BeginEffect of a key has.
func EffectVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the record of the effect in its run, and for a business key one record for all runs; no clock: the right does not expire",
		Payload:     "request, semantics, dispatch mode",
		Enforcement: "by the store, when the intent is recorded: the record must be absent, and the run's fence current",
		Token:       "the run's; the idempotency key names the effect to its counterparty",
		Handoff:     "a later driver of the run gets the same effect, and observes or repeats it as its semantics allow",
	}
}

// OutboxVector describes the claim of a dispatcher on an effect of the outbox.
func OutboxVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the record of the effect in its run; the store clock",
		Payload:     "claimer, time of the claim's end, attempts, last error",
		Enforcement: "by the store, when a failed attempt is reported: the record must be as it was read, and the claim's generation the last; an observation of the result needs no claim",
		Token:       "the number of claims of the effect, its generation; a report may leave it out",
		Handoff:     "report the attempt with the time of the next; or the claim expires",
	}
}

// ObligationVector describes the claim of a compensator on an obligation.
func ObligationVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the record of the obligation in its run; the store clock",
		Payload:     "claimer, time of the claim's end, attempts, last error; each change is in the journal",
		Enforcement: "by the store, at each report: the record must be as it was read, and the claim's generation the last",
		Token:       "the number of claims of the obligation, its generation; a report may leave it out",
		Handoff:     "report the attempt with the time of the next; or the claim expires",
	}
}

// TaskVector describes the claim of a worker on tasks of a reaction.
func TaskVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "a record of the shard's run for each task; the store clock",
		Payload:     "owner, time of the claim's end, attempts",
		Enforcement: "by the store, when a claim ends: the record must be as it was read, and the owner the task's",
		Token:       "the owner's name, which has to be unique among workers: the protocol's reports have no generation",
		Handoff:     "report a failure that is not permanent, and another worker claims the task after a pause; or the claim expires",
	}
}
