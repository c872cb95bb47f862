// Command demo shows the main purpose of Tapestore with real processes that are really killed: a
// run outlives its drivers, and nothing is done twice.
//
// The server is `tapestore serve` on a fresh SQLite file. The bank is the counterparty: it moves
// money once per idempotency key, and counts calls and payments. The workers drive one treasury run
// with package tapeclient: they decide, record the decision, carry it out at the bank as an effect,
// and end the run.
//
//   - worker-1 begins the run under token 1 and is killed during an effect: the bank has moved the
//     money, and the journal does not show it yet. The bank withholds its reply until the worker is
//     dead.
//   - worker-2 recovers the run under token 2 once the lease has expired on the store's clock. It
//     reads the recorded decision instead of making another, and calls the bank again with the same
//     key. Its heartbeats keep the lease. Then, after it has recorded an effect and before it calls
//     the bank, it is stopped for longer than its lease lasts.
//   - worker-3 recovers the run under token 3, carries out that effect, and ends the run.
//   - worker-2 resumes. Its lease is no longer trusted, so it does not call the bank. An ordinary
//     worker would stop here. This one first tries every kind of write that a driver has, with its
//     stale fence, and each write must be refused.
//
// Then the demo prints the bank's ledger and the journal, which it reads from the store's file, and
// checks them. If a check fails, it prints which, and its exit status is 1.
package main
