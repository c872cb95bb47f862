package sqlite_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, embedded.SQLite(conformance.T.TempDir, sqlite.Options{}))
}

// TestConformanceInMemory runs the suite on the database without a file.
func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, embedded.SQLiteInMemory(sqlite.Options{}))
}
