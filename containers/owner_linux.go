package containers

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// processScope names this start of this machine, and the namespace of its ids.
func processScope() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + "/" + namespace, nil
}

// processBegan tells when a process began, in ticks since the machine did. It is
// alive unless the kernel says that it is not.
func processBegan(pid int) (began string, alive bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", !errors.Is(err, os.ErrNotExist)
	}
	// The name, in parentheses, may hold anything; the state is the first field
	// after it and the start the twentieth.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", true
	}
	return fields[19], !strings.Contains("ZX", fields[0])
}
