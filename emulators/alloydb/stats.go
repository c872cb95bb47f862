package alloydb

// Stats counts the events of a stand-in since its start.
type Stats struct {
	// ConnectionInfo counts calls of the Admin API that returned an instance's addresses,
	// Certificates calls that signed one, and AdminRefused calls that were answered with an error.
	ConnectionInfo, Certificates, AdminRefused int

	// Connections that were admitted, by the kind of login that the client announced, by instance,
	// and by address: each is counted once in each group.
	Password, IAM            int
	Primary, ReadPool        int
	PrivateIP, PublicIP, PSC int

	// Refused counts connections that were not admitted: no or a bad certificate, a bad token, a
	// reason of RefuseConnections, no metadata exchange in time, or no reply from the server
	// behind.
	Refused int
	// Open is the number of open connections.
	Open int
}

// Stats returns the counts so far. A connection is counted before its client learns that it was
// admitted; a connection without a valid certificate a moment after its refusal.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// count calls change with the counts, under the mutex.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}
