package containers

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// processScope identifies this boot of this machine and the namespace of its process ids.
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

// processBegan returns when a process started, in clock ticks since boot. alive is true unless the
// kernel reports that the process is gone.
func processBegan(pid int) (began string, alive bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", !errors.Is(err, os.ErrNotExist)
	}
	// The name, in parentheses, may contain any characters. The state is the first field after it
	// and the start time the twentieth.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", true
	}
	return fields[19], !strings.Contains("ZX", fields[0])
}
