package containers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ownerLabel is the label of a container that names the process that started it.
const ownerLabel = "tapestore.emulators.owner"

// thisProcess returns this process in the form of ownerLabel: the scope in which process ids are
// unique, the id, and the process's start time, because ids are reused.
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

// isGone reports whether an owner has certainly ended. It returns false for a process of another
// machine or of another container, which this process cannot observe.
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
