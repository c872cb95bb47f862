package engines

import (
	"context"

	"github.com/tapestore/tapestore/bench"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

// peerSet is a set of peers beside the target "postgres".
type peerSet struct {
	name   string
	attach func(context.Context, *postgresemulator.Server, *bench.Target) error
}

// peers holds what adds peers to the target "postgres".
var peers []peerSet

// RegisterPeers makes the target "postgres" call attach, which adds strategies and their systems to
// the target: systems to measure beside the store on the same server. attach extends the target's
// Close to stop what it started, and leaves nothing running after an error, in which case the target
// is measured without these peers, and the report says so under the given name. RegisterPeers is
// called from init functions.
func RegisterPeers(name string, attach func(ctx context.Context, server *postgresemulator.Server, target *bench.Target) error) {
	peers = append(peers, peerSet{name, attach})
}

// attachPeers adds the registered peers to a target. Peers that cannot be added become a system that
// is missing. It returns an error only if ctx has ended.
func attachPeers(ctx context.Context, server *postgresemulator.Server, target *bench.Target) error {
	for _, set := range peers {
		before := *target
		err := set.attach(ctx, server, target)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			*target = before
			target.Peers = append(target.Peers, bench.System{Name: set.name, Engine: target.System.Engine, Peer: true, Missing: err.Error()})
		}
	}
	return nil
}
