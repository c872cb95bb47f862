package cases

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// sending is one kind of write, to be sent while faults occur.
type sending struct {
	name  string
	stand initialState
	do    func(ctx context.Context, s runstore.RunStore, id runstore.RunID, held runstore.Lease) (receipt, error)
}

// initialState is the state of a run before the write.
type initialState int

const (
	stateLeased initialState = iota // the run is leased
	stateFree                       // the run exists and no owner holds its lease
	stateNoRun                      // the run does not exist
)

// seedRun creates the run that w is sent to, in w's initial state, and returns its lease, if any.
func (w sending) seedRun(t harness.T, e *harness.Env, id runstore.RunID) (held runstore.Lease) {
	t.Helper()
	if w.stand == stateNoRun {
		return held
	}
	held = kit.SeedFixture(t, e, id)
	if w.stand == stateFree {
		kit.MustRelease(t, e.Store, held)
	}
	return held
}

// send starts the write in the background.
func (w sending) send(ctx context.Context, s runstore.RunStore, id runstore.RunID, held runstore.Lease) *attempt {
	return start(func() (receipt, error) { return w.do(ctx, s, id, held) })
}

// sendings returns all kinds of writes that an adapter may handle differently.
func sendings() []sending {
	batch := func(name string, make func(held runstore.Lease) runstore.Batch) sending {
		return sending{name, stateLeased, func(ctx context.Context, s runstore.RunStore, _ runstore.RunID, held runstore.Lease) (receipt, error) {
			done, err := s.Commit(ctx, make(held))
			return committedReceipt(done), err
		}}
	}
	create := func(name string, fill func(spec *runstore.RunSpec)) sending {
		return sending{name, stateNoRun, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, _ runstore.Lease) (receipt, error) {
			spec := runstore.RunSpec{ID: id, Status: 1}
			fill(&spec)
			created, err := s.CreateRun(ctx, spec)
			r := receipt{}
			if spec.Lease != nil {
				r = leaseReceipt(created.Lease, spec.Lease.Grant)
			}
			r.text += fmt.Sprintf(", new %t, seq %d, status %d", created.New, created.Run.LastSeq, created.Run.Status)
			return r, err
		}}
	}
	take := func(name string, stand initialState, fill func(req *runstore.AcquireRequest)) sending {
		return sending{name, stand, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, _ runstore.Lease) (receipt, error) {
			req := kit.Acquiring(id, "taker", harness.TTL)
			fill(&req)
			lease, err := s.AcquireLease(ctx, req)
			return leaseReceipt(lease.Lease, req.Grant), err
		}}
	}
	end := func(name string, fill func(w *runstore.Writes)) sending {
		return sending{name, stateLeased, func(ctx context.Context, s runstore.RunStore, _ runstore.RunID, held runstore.Lease) (receipt, error) {
			req := runstore.ReleaseRequest{Fence: held.Fence()}
			fill(&req.Writes)
			done, err := s.ReleaseLease(ctx, req)
			// A release that is found to be done returns no result of its writes.
			return receipt{text: fmt.Sprint("last seq ", done.LastSeq)}, err
		}}
	}
	unguarded := func(held runstore.Lease) runstore.Batch {
		return runstore.NewBatch(held.Run, runstore.Unguarded("test"))
	}
	return []sending{
		batch("append", func(held runstore.Lease) runstore.Batch { return kit.Appending(held, "once") }),
		batch("unguarded-append", func(held runstore.Lease) runstore.Batch {
			b := unguarded(held)
			b.Append("signal", []byte("once"))
			return b
		}),
		batch("put", func(held runstore.Lease) runstore.Batch {
			b := unguarded(held)
			b.Put("a", []byte("once"), runstore.Place{Index: "queue-b", At: runstore.After(0)})
			return b
		}),
		batch("put-at-versions", func(held runstore.Lease) runstore.Batch {
			b := runstore.NewBatch(held.Run, runstore.AtVersion("a", 1), runstore.AtVersion("new", 0))
			b.Put("a", []byte("once"))
			b.Put("new", nil)
			b.Delete("gone")
			return b
		}),
		batch("whole-batch", func(held runstore.Lease) runstore.Batch {
			b := runstore.NewBatch(held.Run, held.Fence(), runstore.AtSeq(2), runstore.InStatus(1))
			kit.WriteEverything(&b.Writes, "once", 2)
			return b
		}),
		batch("batch-with-an-id", func(held runstore.Lease) runstore.Batch {
			b := runstore.NewBatch(held.Run, held.Fence())
			b.ID = runstore.NewBatchID()
			kit.WriteEverything(&b.Writes, "once", 2)
			return b
		}),
		batch("releasing-batch", func(held runstore.Lease) runstore.Batch {
			b := kit.Appending(held, "end")
			b.Release = true
			return b
		}),
		batch("purge", func(held runstore.Lease) runstore.Batch {
			b := runstore.NewBatch(held.Run, held.Fence())
			b.Purge = true
			return b
		}),
		create("create", func(*runstore.RunSpec) {}),
		create("create-with-writes", func(spec *runstore.RunSpec) {
			spec.Writes.Append("begin", nil)
			spec.Writes.Put("a", []byte("once"), runstore.Place{Index: "queue-a", At: runstore.After(0)})
		}),
		create("create-with-a-lease", func(spec *runstore.RunSpec) {
			spec.Lease = kit.WithLease("", "taker").Lease
			spec.Writes.Append("begin", nil)
		}),
		take("acquire", stateFree, func(*runstore.AcquireRequest) {}),
		take("acquire-without-an-id", stateFree, func(req *runstore.AcquireRequest) { req.Grant = "" }),
		take("acquire-with-writes", stateFree, func(req *runstore.AcquireRequest) { kit.WriteEverything(&req.Writes, "once", 2) }),
		take("preempt", stateLeased, func(req *runstore.AcquireRequest) { req.Preempt = "test" }),
		{"renew", stateLeased, func(ctx context.Context, s runstore.RunStore, _ runstore.RunID, held runstore.Lease) (receipt, error) {
			lease, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: held.Fence(), TTL: 2 * harness.TTL})
			return leaseReceipt(lease.Lease, held.Grant), err
		}},
		end("release", func(*runstore.Writes) {}),
		end("release-with-writes", func(w *runstore.Writes) { kit.WriteEverything(w, "end", 2) }),
	}
}
