//go:build !linux

package main

// limitMemory does nothing: only Linux enforces a limit on allocated memory.
func limitMemory() {}
