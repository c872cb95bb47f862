//go:build !linux

package emulators

// memoryRoot is a directory in memory: none here that is always there.
func memoryRoot() string { return "" }
