// Package tape implements Tape's semantics over runstore.RunStore: runs, decisions, effects, the
// outbox, obligations, budgets, gates, timers, compaction, sessions, values, reactions and their
// tasks, as state machines over records. It depends on no engine and on no wire format.
//
// Every change is one commit: the record, the run's seq and the journal entry become visible
// together or not at all. Conditions that a guard can check are not read first, so most operations
// take one round trip to the store; the comment of each method says how many. A commit whose guard does
// not hold may take a second one.
//
// # Fencing
//
// BeginRun and ResumeRun grant the run's lease. Every writing operation takes a fence, which may be
// absent. A fence that is presented is always a guard of the commit, so the store refuses a zombie
// (a holder that has lost its lease) in the same atomic step in which it would have written. An
// operation that finds nothing to write (the decision is recorded already, the effect is complete)
// refuses a zombie too: with a fence it ends in a commit that has only guards. With [FenceRequired]
// and [FenceConnection] a write without a fence is refused if [Authorities] requires one. A write
// to a session or a value may present the fence of any run, and is applied only while that grant is
// current; package crossrun describes how, and what its readers see meanwhile.
//
// # State machines
//
// Each row is one record. A transition reads the row, decides, and writes it with its journal
// entries if the record is still at the version that was read (compare-and-swap); see ledger. The
// store's clock is the only one: a deadline is stored relative to the commit that sets it. The
// operations of one Tape on one row take turns. If the context of an operation ends before its turn, it
// returns runstore.ErrUnavailable and has written nothing.
//
//	effect      PENDING to CONFIRMED, FAILED or UNKNOWN by CompleteEffect; PENDING and UNKNOWN by
//	            ReconcileEffect and RecordExternalObservation, which may send it back to PENDING. An
//	            observation of CONFIRMED or DUPLICATE makes any effect CONFIRMED; one of ABSENT changes
//	            nothing while the dispatch is claimed, and one of STUCK changes only a NON_IDEMPOTENT
//	            effect then. A claim of the dispatch ends with its TTL, with a report, with an observation
//	            that has a status and with an outcome of ReconcileEffect other than PENDING.
//	obligation  PENDING to COMMITTED by a claim, back by a failed attempt, or to STUCK by the last
//	            one; any but COMPENSATED to COMPENSATED, and PENDING and COMMITTED to STUCK, by
//	            ResolveObligation. COMPENSATED is final.
//	gate        empty to delivered by SendSignal, delivered to consumed by AwaitSignal.
//	timer       set to fired by a list that claims.
//	task        PENDING to CLAIMED by a claim, CLAIMED to DONE by its completion, back to PENDING or to the
//	            DLQ by a failed attempt. A claim that has lapsed can be made again. DONE and DLQ are final.
//	run         WAITING by AwaitSignal, RUNNABLE by SendSignal, RUNNING by BeginRun and ResumeRun; ended
//	            by EndRun, and only BeginRun revives one that is FAILED or CANCELLED. AwaitSignal and
//	            ResumeRun leave one that is COMPENSATING so.
//
// # Limits
//
// Texts are bounded so that every answer fits into a message of 4 MiB, the default limit of gRPC
// clients. The room for an effect's outcome is reserved when the effect begins: [MaxRequest] bounds
// its request, [MaxOutcome] its response and error, [MaxEffectNames] its names, independently of
// each other. The other limits are independent of each other too:
//
//   - decisions and runs: [MaxDecision], [MaxRunNames], [MaxDetail]
//   - obligations: [MaxObligationNames], [MaxCompensation], [MaxCompensator], [MaxClaimer],
//     [MaxAttemptError], [MaxResult]
//   - gates: [MaxSignal], [MaxGateContext]
//   - dispatches: [MaxDispatchError], [MaxExternalRef]
//   - sessions: [MaxSessionState], [MaxSessionEvent], [MaxSessionNames]
//   - values: [MaxValueNames]
//   - reactions: [MaxReactionID], [MaxReactionNames], [MaxPattern], [MaxPredicate]
//   - tasks: [MaxTask], [MaxTaskError]
//
// A larger text is refused with runstore.ErrTooLarge, which names the field and the limit. A list
// ends where the next entry would not fit.
//
// A store may also limit the records of one run, as Bigtable does. BeginEffect is then refused with
// runstore.ErrTooLarge, field "records", if there is no room for the effect with its largest
// outcome. However full the run is, these operations succeed: an effect that was begun can be
// claimed, retried, completed, reconciled and observed; an obligation can be resolved, a gate
// signalled, a budget charged; the run can be taken over, ended and compacted. An observation also
// registers its obligation, unless the effect was CONFIRMED before. Registering any other
// obligation, setting a timer and opening a gate need room of their own. So does a write to a
// session under the fence of the full run, on a store without runstore.MultiCommitter.
//
// # Stored form
//
// The run's status is the store's Status. Its identity, its scopes and its end are in the record
// runstore.SummaryKey. The other records of a run:
//
//	decision/INDEX    a decision
//	effect/KEY        an effect
//	budget            the budget
//	obligation/HASH   an obligation; HASH is the hash of its effect key and kind
//	gate/NAME         a gate
//	gates             the common state of the run's gates
//	timer/ID          a timer
//	grant             the id of the last grant
//	compaction        the progress of a compaction
//	crossrun/…        steps over two runs
//	business/ATTEMPT  the mark of an attempt to begin an effect with a business key, on a store that
//	                  commits to one run at a time
//
// These have runs of their own, which no list of runs shows:
//
//	session           the record session is its state, the journal its events
//	value             the record value is its current version, the journal has every version
//	shard             reaction/HASH/SHARD, without a journal: the record cursor is its position in the
//	                  feed; task/POSITION, done/REST and dead/REST are its tasks; the record reaction
//	                  of shard 0 is the reaction's definition
//	business key      business/HASH: the record effect names the run and the key of its effect
//
// A row's seq and time are the stamps of its record, a journal entry's those of its event; values
// do not repeat them. Each value has a format number. A value of a newer format than this package
// supports is refused with [ErrFormat].
package tape
