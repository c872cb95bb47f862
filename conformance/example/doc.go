// Package acme is an adapter outside Tapestore's module. It shows how an adapter's author runs the
// conformance suite: see acme_test.go. In a repository of its own, the replace line in its go.mod
// points to a checkout of Tapestore until a version is released.
package acme
