package host

import (
	"fmt"
	"time"
)

// Bounds on what takes a healthy machine much less time. They only keep a failing machine
// from blocking a caller without a deadline.
const (
	// StartBound (2 min) bounds the start of an engine, recovery included.
	StartBound = 2 * time.Minute
	// StopBound (20 s) bounds the end of an engine, and of its processes.
	StopBound = 20 * time.Second
	// DropBound (2 min) bounds the deletion of all databases or tables of the tests, on an emulator or a
	// service that keeps running.
	DropBound = 2 * time.Minute
	// DoctorBound (30 s) bounds one reply of a program or a server on a busy machine: gcloud takes
	// a second on an idle one.
	DoctorBound = 30 * time.Second
)

// PollInterval (3 ms) is the time between two looks at something that usually takes milliseconds.
const PollInterval = 3 * time.Millisecond

// Await polls until a condition holds, for at most bound.
func Await(bound time.Duration, holds func() (bool, error)) error {
	ticker := time.NewTicker(PollInterval)
	defer ticker.Stop()
	for until := time.Now().Add(bound); ; <-ticker.C {
		if yes, err := holds(); yes || err != nil {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("processes did not obey within %v", bound)
		}
	}
}
