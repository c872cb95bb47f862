//go:build !linux

package main

// limitMemory does nothing: only Linux counts what a process has allocated.
func limitMemory() {}
