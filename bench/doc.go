// Package bench measures what leases and fenced commits cost, on any store.
//
// A run of the benchmark has [Part]s: contention for leases (cas), handovers, commits, reads,
// heartbeats and the wire protocol. Each part measures every [Target], which is an engine on one
// server, and records [Result]s in a [Report].
//
// Three rules make the figures comparable:
//
//   - The sides of a comparison take turns. [Session.Compare] runs each side for a short slice of
//     time, in an order that rotates, so that a machine whose speed drifts favours none of them. A
//     metric has one sample per round, or one in all if it needs more operations than a round has.
//     Its value is the median of the samples; that of a maximum is the largest of them.
//   - What was acknowledged is read back. A side whose store does not hold exactly what it
//     acknowledged fails the run.
//   - A missing engine is a row of the report that says so. Figures of an emulator are marked as
//     such, and are never ranked beside those of an engine.
//
// This package holds the parts and the model of the report. Package bench/show prints a report and
// compares two reports, package bench/engines starts the engines, and module bench/peers measures
// other lease libraries beside the stores.
package bench
