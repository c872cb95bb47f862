// Package cases holds the cases of the suite, by theme. Each exported function without parameters
// returns the cases of one theme, in the order in which package conformance lists them; their
// functions follow in the same file or in files whose names begin alike.
package cases
