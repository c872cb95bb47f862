package sqlite_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/runstore/sqlite/sqlitetest"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, sqlitetest.Harness(conformance.T.TempDir, sqlite.Options{}))
}

// TestConformanceInMemory runs the suite on the database without a file.
func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, sqlitetest.MemoryHarness(sqlite.Options{}))
}
