//go:build !linux

package host

// MemoryRoot returns "": this system has no standard directory in memory.
func MemoryRoot() string { return "" }
