// Package tape is Tape's semantics, written once over runstore.RunStore: runs, decisions,
// effects, the outbox, obligations, budgets, gates, timers, compaction, sessions, values, reactions and
// their tasks as state machines over records. It knows no engine and no wire.
//
// Every change is one commit: the record, the run's counter and the journal
// entry become visible together or not at all. What a guard can check is not
// read first, so most operations are one round trip to the store; each method
// says how many it takes.
//
// # Fencing
//
// BeginRun and ResumeRun grant the run's lease. Every writing operation takes a
// fence, which may be absent: a fence that is presented is always a guard of the
// commit, so the store refuses a zombie in the same atomic step in which it would
// have written. An operation that turns out to write nothing (a decision that is
// recorded already, an effect that is complete) is refused to a zombie too: with a
// fence it ends in a commit that has guards only. With [FenceRequired] and
// [FenceConnection] a write without a fence is refused where [Authorities] says that it
// needs one. A write to a session or a value may present the fence of any run, and is then applied only while
// that grant is current; see package crossrun for how, and for what its readers see meanwhile.
//
// # State machines
//
// A row is one record. A transition reads it, decides, and writes it with its journal
// entries if it is still at the version that was read; see ledger. The store's clock is
// the only one: a deadline is stored relative to the commit that sets it.
//
//	effect      PENDING to CONFIRMED, FAILED or UNKNOWN by CompleteEffect; PENDING and UNKNOWN by
//	            ReconcileEffect; any but CONFIRMED by RecordExternalObservation, which may send it back
//	            to PENDING. A claim of its dispatch ends with its TTL, with a report and with an
//	            observation.
//	obligation  PENDING to COMMITTED by a claim, back by a failed attempt; COMPENSATED and STUCK are final.
//	gate        empty to delivered by SendSignal, delivered to consumed by AwaitSignal.
//	timer       set to fired by a list that claims.
//	task        PENDING to CLAIMED by a claim, CLAIMED to DONE by its completion, back to PENDING or to the
//	            DLQ by a failed attempt. A claim that has lapsed can be made again. DONE and DLQ are final.
//	run         WAITING by AwaitSignal, RUNNABLE by SendSignal, RUNNING by BeginRun and ResumeRun; ended
//	            by EndRun, and only BeginRun revives one that is FAILED or CANCELLED.
//
// # Limits
//
// Texts are bounded so that every answer fits into a message of 4 MiB, which is what
// gRPC's clients accept by default. The room for an effect's outcome is reserved when
// the effect begins: [MaxRequest] bounds its request, [MaxOutcome] its response and
// error, [MaxEffectNames] its names, independently of each other. [MaxDecision],
// [MaxRunNames] and [MaxDetail] bound decisions and runs. [MaxObligationNames],
// [MaxCompensation], [MaxCompensator], [MaxClaimer], [MaxAttemptError] and [MaxResult]
// bound an obligation's texts, [MaxSignal] and [MaxGateContext] a gate's, [MaxDispatchError]
// and [MaxExternalRef] a dispatch's, [MaxSessionState], [MaxSessionEvent] and
// [MaxSessionNames] a session's, [MaxValueNames] a value's, [MaxReactionID], [MaxReactionNames], [MaxPattern]
// and [MaxPredicate] a reaction's, [MaxTask] and [MaxTaskError] a task's, independently of each other. What is larger is refused
// with runstore.ErrTooLarge, which names the field and the limit. Lists end where the
// next entry would not fit.
//
// A store may also limit the records of one run, as Bigtable does. BeginEffect is then refused
// with runstore.ErrTooLarge, field "records", while there is no room for the effect with its
// largest outcome. An effect that was begun can be claimed, retried, completed, reconciled and
// observed, an obligation resolved, a gate signalled, a budget charged, and the run taken over, ended
// and compacted, however full the run is. An observation registers its obligation too, unless the
// effect was CONFIRMED before. Registering any other obligation, setting a timer and opening a gate
// need room of their own. So does, on a store without runstore.MultiCommitter, a write to a session
// under the fence of the full run.
//
// # Stored form
//
// The run's status is the store's Status; who it is, its scopes and its end are
// the record under runstore.SummaryKey. A decision is the record decision/INDEX,
// an effect the record effect/KEY, and the budget the record budget. An obligation is
// the record obligation/HASH: HASH is that of its effect key and kind. A gate is the record
// gate/NAME, with gates for all of a run's gates, a timer timer/ID. The record grant has the id of
// the last grant, compaction the progress of one. A session is a run of its own, which no list of
// runs shows: its state is the record session, its events are its journal. A value is one too: its
// present version is the record value, its journal has every version. Each shard of a reaction is a run
// of its own, reaction/HASH/SHARD, without a journal: the record cursor says how far it has read the
// feed, task/POSITION, done/REST and dead/REST are its tasks, and that of shard 0 has the definition, reaction. The records that begin
// with crossrun/ are those of steps over two runs. A business key and its
// connector are a run of their own, too, business/HASH, whose record effect names the run and the
// key of their effect. The record business/ATTEMPT of a run is the mark of an attempt to begin an
// effect with a business key, on a store that commits to one run at a time. A row's seq and
// time are the stamps of its record, and a journal entry's those of its event, so no
// value repeats them. Values carry a format number, and a newer one than this package knows is
// refused with [ErrFormat].
package tape
