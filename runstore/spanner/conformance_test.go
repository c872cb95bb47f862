package spanner_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, engines.Spanner(server(t, fair), server(t, newest), nil))
}
