// Package temporal adds the persistence layer of Temporal to the target "postgres" of the
// benchmark: the ownership of a shard of its history service, which is a compare-and-swap of the
// shard's range id, and the writes that the range id guards.
//
// Importing the package registers it with package bench/engines. The package is in a module of its
// own, so that the other peers do not have Temporal's dependencies.
//
// A turn is what a history host does when it acquires a shard: it reads the shard, raises the range
// id unless another host has, and stores a task of 100 bytes under it. A shard has no expiry and is
// not released. In a cluster a membership protocol names the owner; here contenders take the shard
// from each other, and a contender whose task is refused starts over.
package temporal
