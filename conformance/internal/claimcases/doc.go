// Package claimcases holds the cases of queues and reservations, which package claim makes on any
// store.
package claimcases
