// Package doctor reports which engines can be started on this machine and what is missing.
package doctor

import (
	"context"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/emulators/spanner"
)

// Run returns what the engines' own functions report, each in the order in which the tiers are
// tried, and whether containers can be started. It starts no engine except Spanner's emulator,
// which is quick and the only way to learn whether it needs the shim.
func Run(ctx context.Context) []emulators.Finding {
	findings := postgres.Doctor(ctx)
	findings = append(findings, bigtable.Doctor(ctx)...)
	findings = append(findings, spanner.Doctor(ctx)...)
	return append(findings, docker(ctx, host.This(nil)))
}
