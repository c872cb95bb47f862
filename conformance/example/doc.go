// Package acme is an adapter outside of Tapestore's module, and shows how its
// author runs the conformance suite: see acme_test.go. In a repository of its own
// the go.mod has no replace line.
package acme
