package cases

import (
	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// lostBeforePurge drops the reply to a commit, then purges and creates the run before the handle
// can look up the result of the commit. The purge deletes the batch ids, and so the result.
func lostBeforePurge(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, kind := range []string{"unnamed", "named", "named-and-fenced"} {
		batch := func(id runstore.RunID) runstore.Batch {
			e.Create(t, id)
			guards := runstore.Unguarded("driver")
			if lease := e.Acquire(t, e.Store, id, "driver"); kind == "named-and-fenced" {
				guards = lease.Fence()
			}
			b := runstore.NewBatch(id, guards)
			if kind != "unnamed" {
				b.ID = runstore.NewBatchID()
			}
			b.Append("signal", []byte("once"))
			return b
		}
		eachRoundTrip(t, e, kind, func(id runstore.RunID, after int) bool {
			// The first commit of a connection may need a round trip more.
			awaitWorking(t, e, n.s)
			kit.MustCommit(t, n.s, batch(id+"-first"))
			b := batch(id)
			n.Faults.DropReplies(after)
			a := start(func() (receipt, error) {
				done, err := n.s.Commit(t.Context(), b)
				return committedReceipt(done), err
			})
			lost := a.awaitHarm(t, 1, n.Faults.AwaitDropped)
			n.Faults.Cut()
			applied := len(kit.Journal(t, e.Store, id)) > 0
			purgeIfExists(t, e, id)
			e.Create(t, id)
			n.Faults.Reset()
			a.wait(t, kind)
			again := len(kit.Journal(t, e.Store, id)) > 0
			switch {
			case applied && again:
				t.Errorf("%s: the commit was applied before the purge, and again to the run that was created after it", kind)
			case (applied || again) && a.err != nil && runstore.OutcomeOf(a.err) == runstore.NotApplied:
				t.Errorf("%s: the commit was applied (before the purge: %t), and its caller got %v, which says not applied", kind, applied, a.err)
			}
			return lost
		})
	}
}
