// Package claimload is a load on package claim for tests: callers that put, claim, end, hold and
// commit, over connections that lose and delay requests, and abandon what they have claimed. It
// compares what every caller was answered with what package claim guarantees.
package claimload
