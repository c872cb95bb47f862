// Package tape is Tape's semantics, written once over runstore.RunStore: runs,
// decisions and effects as state machines over records. It knows no engine and
// no wire.
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
// fence it ends in a commit that has guards only. With [FenceRequired] a write
// without a fence is refused.
//
// # Limits
//
// Texts are bounded so that every answer fits into a message of 4 MiB, which is what
// gRPC's clients accept by default. The room for an effect's outcome is reserved when
// the effect begins: [MaxRequest] bounds its request, [MaxOutcome] its response and
// error, [MaxEffectNames] its names, each whatever the others hold. [MaxDecision],
// [MaxRunNames] and [MaxDetail] bound decisions and runs. [MaxObligationNames],
// [MaxCompensation], [MaxCompensator], [MaxClaimer], [MaxAttemptError] and [MaxResult]
// bound an obligation's texts, each whatever the others hold. What is larger is refused
// with runstore.ErrTooLarge, which names the field and the limit. Lists end where the
// next entry would not fit.
//
// # Stored form
//
// The run's status is the store's Status; who it is, its scopes and its end are
// the record under runstore.SummaryKey. A decision is the record decision/INDEX,
// an effect the record effect/KEY, and the budget the record budget. An obligation is
// the record obligation/HASH: HASH is that of its effect key and kind. A row's seq and
// time are the stamps of its record, and a journal entry's those of its event, so no
// value repeats them. Values carry a format number, and a newer one than this package knows is
// refused with [ErrFormat].
package tape
