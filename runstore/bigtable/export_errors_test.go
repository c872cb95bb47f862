package bigtable

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Why an operation failed, where its kind does not say.
var (
	ErrBusy     = errBusy
	ErrLate     = errLate
	ErrLongAgo  = errLongAgo
	ErrPurged   = errPurged
	ErrSlowScan = errSlowScan
)

// BoundScans changes how long a scan of a handle may take, and returns what it was.
func BoundScans(s *Store, d time.Duration) (before time.Duration) {
	before, s.engine.maxScanTime = s.engine.maxScanTime, d
	return before
}

// AsUnavailable converts the error of a request that precedes a caller's write.
func AsUnavailable(id runstore.RunID, err error) error { return asUnavailable(id, err) }
