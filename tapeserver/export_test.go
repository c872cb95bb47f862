package tapeserver

// Cut cancels the calls in flight, as a drain does once they take too long.
func (s *Server) Cut() { s.beginCut() }

// MaxGrants is how many grants a connection remembers.
const MaxGrants = maxGrants
