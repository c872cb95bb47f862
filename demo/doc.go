// Command demo shows the main job of Tapestore, with real processes that are really
// killed: a run outlives its drivers, and nothing is done twice.
//
// The cast are processes of their own, on loopback. The server is `tapestore serve`
// on a fresh SQLite file. The bank is the counterparty: it moves money when it is
// called, recognises a call that it has seen by its idempotency key, and counts
// both. The workers drive one treasury run over Tape's wire protocol: they decide,
// record the decision, act on it at the bank as an effect, and end the run.
//
//   - worker-1 begins the run under token 1 and is killed in mid-effect: the bank has
//     moved the money, and nobody has noted it. The bank holds its reply until the
//     worker is dead, so that this is no matter of luck.
//   - worker-2 waits until the store's clock says that the lease is over, takes the
//     run over under token 2, reads the decision that was made instead of making
//     another, and asks the bank again with the same key. The bank answers as it
//     did before. worker-2 goes on, and keeps its lease by heartbeats. Then, between
//     having put an effect on file and acting on it, it is stopped, for longer than
//     its lease lasts.
//   - worker-3 takes over under token 3, acts on that effect, and ends the run.
//   - worker-2 wakes up. It does not know that it slept, but it knows that its lease
//     is too old to act on, asks for more time, and is told that it is fenced. A
//     worker would stop here. This one first insists: it tries every kind of write
//     that it knows, each with its old fence, and each must be refused.
//
// Then the demo reads the evidence (the bank's ledger, the journal in the store's
// file, what each process reported, how each ended), prints it, and checks it. It
// exits non-zero and says what was not so.
//
// A lease keeps two drivers from working at the same time for as long as clocks and
// schedulers behave. The token keeps the second one out of the journal when they do
// not. What the bank does is kept single by the journal and the idempotency key.
package main
