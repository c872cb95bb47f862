// Package boltstore is an adapter outside Tapestore's module, for authors of adapters to read and
// copy: a store in one file of bbolt (go.etcd.io/bbolt), an embedded B+tree with one writer at a
// time. Package runstore/adapter makes the RunStore of it, package rules takes the decisions, and
// the conformance suite tests it: see bolt_test.go.
//
// Everything happens in a transaction of bbolt, which is synced before it is acknowledged. So the
// check of the fence and the writes are one atomic step, and there is one order of all commits. The
// clock is the host's, because a file has one host.
//
// It is an example and not a sixth engine: a commit rewrites the head, the records and the
// remembered results of its run as one value, and an index is computed from all runs.
//
// In a repository of its own, the replace line in go.mod points to a checkout of Tapestore until a
// version is released.
package boltstore
