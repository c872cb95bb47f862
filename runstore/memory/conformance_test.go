package memory_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
)

func TestConformance(t *testing.T) { conformance.Run(t, embedded.Memory()) }
