//go:build !unix

package bench

import "time"

// processorTime returns 0: the CPU time is measured on Unix only.
func processorTime() time.Duration { return 0 }
