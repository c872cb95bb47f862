package main

import "syscall"

// memoryLimit is what a process started by this one may allocate: 6 GiB, several times
// what the largest case or the linker needs. A mutation that makes a loop endless must not
// take the machine down before its bound of time ends.
const memoryLimit = 6 << 30

// limitMemory bounds the memory of the processes that this one starts. Where the limit
// cannot be set, tests run without it.
func limitMemory() {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_DATA, &limit); err != nil || limit.Cur < memoryLimit {
		return
	}
	limit.Cur = memoryLimit
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &limit)
}
