// Package peers adds other lease libraries to the target "postgres" of the benchmark, so that they
// take turns with its store on the same machine: embedded etcd, session and row locks of
// PostgreSQL, a hand-written lease row, River, and the leader election of client-go.
//
// Importing the package registers them with package bench/engines. The package is in a module of
// its own, so that users of the stores do not download its dependencies.
//
// A turn of a peer is what its users write: acquire the lock or the leadership, store one event of
// 100 bytes, release. The event goes to a table or to keys of its own, and carries a token only
// where that is usual with the peer's API.
package peers
