// Package tapepb is the wire contract of Tape in Go: the code generated from
// tape.proto. It registers the names of package tape.v1, so a process links
// either this package or another one generated from the same names, not both.
package tapepb

//go:generate ./generate.sh
