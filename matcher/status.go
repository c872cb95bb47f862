package matcher

// Status counts the shards of a replica.
type Status struct {
	// Shards is the number of shards of the live reactions that the replica has listed.
	Shards int
	// Held is the number of those whose leases the replica holds.
	Held int
	// Stalled is the number of those that cannot continue and are tried again; each was logged as a
	// warning.
	Stalled int
}

// Status returns the replica's numbers of shards.
func (m *Matcher) Status() Status {
	m.spread.mu.Lock()
	defer m.spread.mu.Unlock()
	return Status{Shards: m.spread.shards, Held: m.spread.held, Stalled: int(m.stalled.Load())}
}

// stall records that the shard cannot continue.
func (s *shard) stall() {
	if !s.stalled.Swap(true) {
		s.reaction.m.stalled.Add(1)
	}
}

// unstall records that the shard continues or has ended, and reports whether it was stalled.
func (s *shard) unstall() bool {
	was := s.stalled.Swap(false)
	if was {
		s.reaction.m.stalled.Add(-1)
	}
	return was
}
