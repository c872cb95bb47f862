// Package crossruncases holds the cases of steps over two runs, which package crossrun makes on any
// store.
package crossruncases
