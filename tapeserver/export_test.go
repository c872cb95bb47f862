package tapeserver

// Cut cancels the calls in flight, as a drain does once they take too long.
func (s *Server) Cut() { s.beginCut() }

// MaxGrants is how many grants a connection remembers.
const MaxGrants = maxGrants

// CheckedGrants is how many grants a refusal checks.
const CheckedGrants = checkedGrants

// MaxGrantsInAll is how many grants all connections remember.
const MaxGrantsInAll = maxGrantsInAll

// CountGrants counts n more grants of a client, as its connections do.
func (s *Server) CountGrants(client string, n int) { s.grants.add(client, n) }
