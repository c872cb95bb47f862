// Package kit holds what the cases of the suite share: requests and batches in short form, steps
// that must succeed, checks that compare a run with what it must be, fixtures, and the means to act
// as several processes at once.
package kit
