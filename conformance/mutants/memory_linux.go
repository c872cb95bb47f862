package main

import "syscall"

// memoryLimit bounds the memory that a child process may allocate: 6 GiB, several times what the
// largest case or the linker needs. A mutation that makes a loop endless must not exhaust the
// machine's memory before its time limit ends it.
const memoryLimit = 6 << 30

// limitMemory bounds the memory of the processes that this process starts. If the limit cannot be
// set, tests run without it.
func limitMemory() {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_DATA, &limit); err != nil || limit.Cur < memoryLimit {
		return
	}
	limit.Cur = memoryLimit
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &limit)
}
