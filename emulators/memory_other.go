//go:build !linux

package emulators

// memoryRoot returns "": this system has no standard directory in memory.
func memoryRoot() string { return "" }
