package sqlite

import (
	"context"
)

// Hold takes the lock that every writer needs, as a process that is stopped in
// the middle of a transaction would, and returns how to let it go.
func Hold(ctx context.Context, path string) (release func() error, err error) {
	c, err := connect(path)
	if err != nil {
		return nil, err
	}
	if err := patiently(ctx, func() error { return c.script(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return nil, err
	}
	return func() error {
		if err := c.script(context.Background(), "ROLLBACK"); err != nil {
			return err
		}
		return c.close()
	}, nil
}

// CheckVersion is checkVersion.
func CheckVersion(v string) error { return checkVersion(v) }

// Queued returns how many operations wait for a transaction.
func Queued(s *Store) int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.queue)
}

// Scans returns the queries of ScanIndex, with how many arguments each has.
func Scans() map[string]int {
	return map[string]int{
		scanPlaces: 7, scanRuns: 4, scanRunnable: 6,
		backwards(scanPlaces): 7, backwards(scanRuns): 4, backwards(scanRunnable): 6,
		selectHead: 1, selectFeed: 2, selectEvents: 2, recordsFrom: 6, recordOfKey: 2,
		extend + fenced + extended: 7, renew: 6,
	}
}
