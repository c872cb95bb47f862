// Package all imports every engine, so that runstore.Open knows their schemes.
package all

import (
	_ "github.com/tapestore/tapestore/runstore/alloydb"  // alloydb:
	_ "github.com/tapestore/tapestore/runstore/bigtable" // bigtable:
	_ "github.com/tapestore/tapestore/runstore/memory"   // memory:
	_ "github.com/tapestore/tapestore/runstore/postgres" // postgres: and postgresql:
	_ "github.com/tapestore/tapestore/runstore/spanner"  // spanner:
	_ "github.com/tapestore/tapestore/runstore/sqlite"   // sqlite:
)
