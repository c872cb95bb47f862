package containers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ownerLabel, on a container, names the process that started it.
const ownerLabel = "tapestore.emulators.owner"

// thisProcess is this process in the form of ownerLabel: where process ids mean
// something, the id, and when the process began, since ids are used again.
func thisProcess() (string, error) {
	where, err := processScope()
	if err != nil {
		return "", err
	}
	pid := os.Getpid()
	began, alive := processBegan(pid)
	if !alive {
		return "", fmt.Errorf("this process, %d, does not find itself", pid)
	}
	return fmt.Sprintf("%s %d %s", where, pid, began), nil
}

// isGone tells whether an owner has certainly ended. One of another machine, or of
// another container, is not ours to judge.
func isGone(owner string) bool {
	parts := strings.Split(owner, " ")
	if len(parts) != 3 {
		return false
	}
	where, err := processScope()
	if err != nil || parts[0] != where {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	began, alive := processBegan(pid)
	return !alive || began != parts[2]
}
