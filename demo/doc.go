// Command demo shows the main job of Tapestore with real processes that are really killed: a run
// outlives its drivers, and nothing is done twice.
//
// The server is `tapestore serve` on a fresh SQLite file. The bank is the counterparty: it moves money
// once per idempotency key, and counts calls and payments. The workers drive one treasury run with
// package tapeclient: they decide, record the decision, act on it at the bank as an effect, and end
// the run.
//
//   - worker-1 begins the run under token 1 and is killed in mid-effect: the bank has moved the money,
//     and the journal does not say so yet. The bank holds its reply back until the worker is dead.
//   - worker-2 recovers the run under token 2 once its lease has expired on the store's clock. It reads
//     the decision that was made instead of making another, and calls the bank again with the same
//     key. Its heartbeats keep the lease. Then, between having recorded an effect and acting on it, it
//     is stopped for longer than its lease lasts.
//   - worker-3 recovers the run under token 3, acts on that effect, and ends the run.
//   - worker-2 wakes up. Its lease is too old to act on, so it does not call the bank. A worker would
//     stop here. This one first tries every kind of write that a driver has, each with its old fence,
//     and each must be refused.
//
// Then the demo prints the bank's ledger and the journal, which it reads from the store's file, and
// checks them. Its exit status is 1 if something was not as it should be, and it says what.
package main
