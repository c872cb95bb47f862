// Package cuts tests the outcome of an RPC that is interrupted between two of its calls to the
// store. It has tests only.
//
// The tests take every RPC that the server serves, found in the descriptor, and interrupt it at each
// of its store calls in turn:
//
//   - Killed: the server's process ends before or after the call, and the client's connection breaks.
//   - Lost: the request or the reply of the call is lost. In a variant the store answers nothing
//     more until the RPC has ended.
//   - Frozen: the call is held, before or after it is applied, while another caller works on the same
//     run, takes it over or claims the same work. Then it goes on, or turns out to be lost.
//
// # Guarantees
//
//  1. Nothing half done: after a kill the store holds what it held before the RPC, or what an
//     uninterrupted RPC leaves. A compaction of more rows than one commit takes is the exception:
//     the next caller finishes it.
//  2. Nothing twice: after an interruption and a repeat of the request the store holds, and the client
//     is answered, what one execution leaves, or two in a row. For most RPCs two leave what one does.
//     The table of cases names the others, whose requests have no identity in the protocol.
//  3. Serial: an RPC that was frozen and its rival leave what the two leave one after the other, in one
//     of the two orders, and are answered accordingly.
//  4. Definite errors: after UNAVAILABLE nothing of the RPC is stored, and where the outcome is not
//     known the status is UNKNOWN. The exceptions are a heartbeat, which may have extended the lease,
//     and the compaction of guarantee 1.
//  5. A read that is interrupted fails, and changes nothing.
//
// The comparison is by content: each run's head, journal, records with their versions and times, and
// places in indexes. A run without any of these, which a new session or business key begins with, is
// left out: no reader finds it.
//
// All cases run on the memory store, where an interruption is done to the server inside the test. Some
// run on SQLite too, with a server process that gets SIGKILL.
package cuts
