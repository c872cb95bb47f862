package faultstest_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultstest"
)

// TestConformance proves that an adapter can pass every case, those on a bad network
// and a killed server included.
func TestConformance(t *testing.T) { conformance.Run(t, faultstest.Harness(faultstest.Flaws{})) }
