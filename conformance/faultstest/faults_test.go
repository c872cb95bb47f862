package faultstest_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultstest"
)

// TestConformance checks that an adapter can pass every case, those with network faults and a
// killed server included.
func TestConformance(t *testing.T) { conformance.Run(t, faultstest.Harness(faultstest.Flaws{})) }
