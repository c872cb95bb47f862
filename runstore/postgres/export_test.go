package postgres

import (
	"github.com/tapestore/tapestore/runstore"
)

// Waiting returns how many writes of a run wait for the one that is under way.
func Waiting(s *Store, id runstore.RunID) int {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	if at := s.lanes.all[id]; at != nil {
		return len(at.waiting)
	}
	return 0
}
