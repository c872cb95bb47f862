package memory_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore/memory/memorytest"
)

func TestConformance(t *testing.T) { conformance.Run(t, memorytest.Harness()) }
