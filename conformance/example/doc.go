// Package acme is an adapter outside of Tapestore's module, and shows how its
// author runs the conformance suite: see acme_test.go. In a repository of its own
// the replace line of its go.mod leads to a checkout of Tapestore, until a version of
// that is released.
package acme
