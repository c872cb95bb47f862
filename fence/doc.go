// Package fence refuses stale fencing tokens in services outside the store.
//
// The store checks the token of every write to a run. A driver also calls other services: a bank, a
// search index, an object store. Each of them must refuse a driver that was paused and replaced. A
// fence enforced by only some targets is a fence with a hole in it. A service embeds a [Checker],
// which remembers the highest token seen per resource, and refuses every lower token.
//
// [Memory] is a checker for one process, [SQL] one for several replicas that share a database.
// Package fence/fencehttp has the middleware and the client's side for HTTP, fence/fencegrpc the
// interceptors for gRPC. A service without either calls Check itself.
//
// # What a check guarantees
//
// After a check of a token has succeeded, no check of a lower token of that resource succeeds, as
// long as the checker remembers the resource. [Memory] remembers until its process ends, [SQL] as
// long as its table.
//
// # What it does not guarantee
//
//   - A checker sees a takeover only in the first request under the new token. Until then it
//     accepts the old one. A new holder therefore presents its token to every service before it
//     acts anywhere or reads what it acts upon: that is an announcement, and any request that the
//     service checks will do ([Announce], and fencehttp.AnnounceHandler).
//   - A check is not atomic with the work that follows. A request that was checked before the first
//     request under a newer token may still run after it. A service closes that gap where its write
//     is: with [SQL.CheckTx] in the same transaction, or with a conditional write (see the example
//     of an object store).
//   - Tokens are comparable only within one run. All tokens of a resource must come from the same
//     run of the same store, and every holder must name the resource alike.
//   - A token is no credential. A caller that may present any token can present a high one and shut
//     out every holder of the run. Authenticate callers first.
//
// After the store was restored from a backup, its tokens continue below those that services have
// seen until its epoch is raised. Until then checkers refuse its new holders, which is the safe side:
// raise the epoch, as after every restore. Epochs are in the high bits of a token, so no checker
// needs to know of them.
package fence
