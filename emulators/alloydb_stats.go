package emulators

// AlloyDBStats counts what a stand-in has seen since its start.
type AlloyDBStats struct {
	// ConnectionInfo counts calls of the Admin API that told an instance's
	// addresses, Certificates those that signed one, and AdminRefused those that
	// were answered with an error.
	ConnectionInfo, Certificates, AdminRefused int

	// Connections that were let in, by how the client said it would log in, by
	// instance, and by address: each is counted once in each group.
	Password, IAM            int
	Primary, ReadPool        int
	PrivateIP, PublicIP, PSC int

	// Refused counts connections that were not let in: no or a bad certificate, a
	// bad token, a reason that RefuseConnections gave, no hello in time, or no
	// answer from the server behind.
	Refused int
	// Open is how many connections are open now.
	Open int
}

// Stats returns the counts so far. A connection is counted before its client
// hears that it was let in; one without a good certificate a moment after.
func (s *AlloyDBServer) Stats() AlloyDBStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// count changes the counts.
func (s *AlloyDBServer) count(change func(*AlloyDBStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}
