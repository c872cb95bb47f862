package cases

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// A zombie is a holder that was paused and lost its lease without noticing. The cases try every
// kind of write that a holder can make, after every way to lose the lease.

// zombieWrite is one kind of write under a lease.
type zombieWrite struct {
	name  string
	needs []harness.Need
	// does and bug end the Doc of the case: what the old holder does, and which store fails.
	does, bug string
	do        func(t harness.T, s runstore.RunStore, old runstore.Lease, req runstore.AcquireRequest) error
}

// fencedBatch returns a zombieWrite of the writes of one batch.
func fencedBatch(name, does, bug string, fill func(b *runstore.Batch)) zombieWrite {
	return zombieWrite{name: name, does: does, bug: bug, do: func(t harness.T, s runstore.RunStore, old runstore.Lease, _ runstore.AcquireRequest) error {
		b := runstore.NewBatch(old.Run, old.Fence())
		fill(&b)
		_, err := s.Commit(t.Context(), b)
		return err
	}}
}

func zombieWrites() []zombieWrite {
	status := runstore.Status(66)
	return []zombieWrite{
		fencedBatch("append", "appends an event",
			"ignores the fence of an append",
			func(b *runstore.Batch) { b.Append("zombie", []byte("zombie")) }),
		fencedBatch("new-record", "puts a record that the run does not have",
			"checks the fence for events, and not for a new record",
			func(b *runstore.Batch) { b.Put("zombie", []byte("zombie")) }),
		fencedBatch("record-put", "puts a record that the run has",
			"checks the fence for events, and not for records alone",
			func(b *runstore.Batch) { b.Put("claim", []byte("zombie")) }),
		fencedBatch("record-delete", "deletes a record",
			"checks the fence of puts, and not of deletions",
			func(b *runstore.Batch) { b.Delete("plain") }),
		fencedBatch("summary-put", "puts the run's summary",
			"keeps the summary beside the run's head and writes it without the fence",
			func(b *runstore.Batch) { b.Put(runstore.SummaryKey, []byte("zombie")) }),
		fencedBatch("index-place", "places a record in a queue",
			"writes the index entry before it checks the fence",
			func(b *runstore.Batch) {
				b.Put("zombie", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
			}),
		fencedBatch("index-removal", "puts a record without the place in a queue that it has",
			"removes index entries before it checks the fence",
			func(b *runstore.Batch) { b.Put("claim", []byte("one")) }),
		fencedBatch("status", "sets the run's status",
			"writes the status without the fence",
			func(b *runstore.Batch) { b.Status = &status }),
		fencedBatch("runnable-time", "sets the run's runnable time",
			"writes the runnable time without the fence",
			func(b *runstore.Batch) { b.Runnable = runstore.Never() }),
		fencedBatch("releasing-batch", "commits a batch that only releases the lease",
			"frees the new holder's lease for any batch that releases",
			func(b *runstore.Batch) { b.Release = true }),
		fencedBatch("purge", "purges the run",
			"purges a run without the fence",
			func(b *runstore.Batch) { b.Purge = true }),
		fencedBatch("empty-batch", "commits a batch without writes",
			"reports an empty batch as applied without comparing the fence",
			func(*runstore.Batch) {}),
		fencedBatch("whole-batch", "commits a batch with an id and writes of every kind, which also releases",
			"checks the fence for some kinds of writes only",
			func(b *runstore.Batch) {
				b.ID = "zombie"
				b.Append("zombie", []byte("zombie"))
				b.Put("claim", []byte("zombie"), runstore.Place{Index: "queue", At: runstore.After(0)})
				b.Delete("plain")
				b.Status = &status
				b.Runnable = runstore.After(0)
				b.Release = true
			}),
		{name: "renewal", does: "renews the lease",
			bug: "extends the lease without comparing the grant, or returns success to the old holder",
			do: func(t harness.T, s runstore.RunStore, old runstore.Lease, _ runstore.AcquireRequest) error {
				return kit.Renew(t, s, old, 4*harness.TTL)
			}},
		{name: "release", does: "releases the lease",
			bug: "frees the run's lease whatever grant a release names",
			do: func(t harness.T, s runstore.RunStore, old runstore.Lease, _ runstore.AcquireRequest) error {
				return kit.Release(t, s, old)
			}},
		{name: "release-with-writes", does: "releases the lease with an event and a status",
			bug: "checks the fence of a release, and not of the writes that it carries",
			do: func(t harness.T, s runstore.RunStore, old runstore.Lease, _ runstore.AcquireRequest) error {
				req := runstore.ReleaseRequest{Fence: old.Fence()}
				req.Writes.Append("zombie", []byte("zombie"))
				req.Writes.Status = &status
				_, err := s.ReleaseLease(t.Context(), req)
				return err
			}},
		{name: "repeated-acquire", does: "repeats its own acquire, now with an event",
			bug: "grants an ended grant again, or makes the writes of a refused acquire",
			do: func(t harness.T, s runstore.RunStore, _ runstore.Lease, req runstore.AcquireRequest) error {
				req.Writes.Append("zombie", []byte("zombie"))
				_, err := s.AcquireLease(t.Context(), req)
				return err
			}},
		{name: "multi-run-commit", does: "commits to a neighbouring run and to this one in one CommitMulti",
			bug: "applies the good batch of a commit over several runs before it checks the fence of the other", needs: []harness.Need{harness.NeedMulti}, do: func(t harness.T, s runstore.RunStore, old runstore.Lease, _ runstore.AcquireRequest) error {
				// A sound batch for another run comes first, which must not be applied either.
				neighbour := runstore.NewBatch("neighbour", runstore.Unguarded("test"))
				neighbour.Append("zombie", []byte("zombie"))
				_, err := kit.Capability[runstore.MultiCommitter](s).CommitMulti(t.Context(), []runstore.Batch{neighbour, kit.Appending(old, "zombie")})
				return err
			}},
	}
}

// leaseLoss is a way to lose a lease; it returns the next grant.
type leaseLoss struct {
	name  string
	short bool // the lost lease has the short TTL
	lose  func(t harness.T, e *harness.Env, s runstore.RunStore, old runstore.Lease, next runstore.AcquireRequest) runstore.Lease
}

func leaseLosses() []leaseLoss {
	return []leaseLoss{
		{"taken-over-at-expiry", true,
			func(t harness.T, e *harness.Env, s runstore.RunStore, _ runstore.Lease, next runstore.AcquireRequest) runstore.Lease {
				kit.Expire(t, e)
				return kit.MustAcquire(t, s, next)
			}},
		{"preempted", false,
			func(t harness.T, _ *harness.Env, s runstore.RunStore, _ runstore.Lease, next runstore.AcquireRequest) runstore.Lease {
				next.Preempt = "test"
				return kit.MustAcquire(t, s, next)
			}},
		{"released-by-a-copy-of-itself", false,
			func(t harness.T, _ *harness.Env, s runstore.RunStore, old runstore.Lease, next runstore.AcquireRequest) runstore.Lease {
				kit.MustRelease(t, s, old)
				return kit.MustAcquire(t, s, next)
			}},
	}
}

// zombieCases returns one case for each kind of write, and the cases of writes in flight.
func zombieCases() []harness.Case {
	var all []harness.Case
	for _, w := range zombieWrites() {
		all = append(all, harness.Case{Guarantee: "I3", Name: "zombie-" + w.name + "-is-refused", Needs: w.needs,
			Run: func(t harness.T, e *harness.Env) { zombie(t, e, w) }, Doc: `
			A holder loses its lease at its expiry, by a preempt or by a release (one of them in a quick run), and
			another handle acquires it. The old holder then ` + w.does + `, before and after the new holder's next
			commit, through two handles. Each attempt is ErrFenced, and the run ends byte for byte like one without
			the old holder. A store that ` + w.bug + ` fails.`})
	}
	return append(all, flightCases()...)
}

// zombie runs a scenario with the zombie's writes and its twin without them, and fails the case
// unless both runs end equal.
func zombie(t harness.T, e *harness.Env, w zombieWrite) {
	e.Create(t, "neighbour")
	losses := leaseLosses()
	n := e.Scaled(t, "ways to lose the lease", 1, len(losses))
	first := slices.IndexFunc(zombieWrites(), func(other zombieWrite) bool { return other.name == w.name })
	for i := range n { // a quick run tries one way, not the same for each kind of write
		l := losses[(first+i)%len(losses)]
		visited := zombieScenario(t, e, runstore.RunID("haunted-"+l.name), l, &w)
		twin := zombieScenario(t, e, runstore.RunID("twin-"+l.name), l, nil)
		kit.CheckUnchanged(t, fmt.Sprintf("a zombie's %s, %s,", w.name, l.name), twin, visited)
	}
	if events := kit.Journal(t, e.Store, "neighbour"); len(events) != 0 {
		t.Errorf("the zombie wrote to another run: %s", kit.JournalText(events))
	}
	for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime}) {
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if entry.Record.Key != "claim" {
			t.Errorf("the queue holds %q of %q, which no current holder placed there", entry.Record.Key, entry.Run)
		}
	}
}

// seedZombieFixture creates a run that a zombie could damage, and writes to it under its first
// lease.
func seedZombieFixture(t harness.T, e *harness.Env, former runstore.RunStore, first runstore.AcquireRequest) (old runstore.Lease) {
	t.Helper()
	spec := runstore.RunSpec{ID: first.Run, Status: 1, Runnable: runstore.After(harness.TTL)}
	if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	old = kit.MustAcquire(t, former, first)
	b := kit.Appending(old, "begun")
	b.Put("claim", []byte("one"), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Put("plain", []byte("one"))
	b.Put(runstore.SummaryKey, []byte("one"))
	kit.MustApply(t, former, "the first holder's batch", b)
	return old
}

// zombieScenario lets one holder and then another drive a run, with the writes of a zombie or
// without, and returns the final state of the run.
func zombieScenario(t harness.T, e *harness.Env, id runstore.RunID, l leaseLoss, w *zombieWrite) string {
	t.Helper()
	former, successor := e.Reopen(t), e.Reopen(t)
	first := kit.Acquiring(id, "old", harness.TTL)
	if l.short {
		first.TTL = e.ShortTTL()
	}
	old := seedZombieFixture(t, e, former, first)

	next := kit.Acquiring(id, "new", harness.TTL)
	next.Writes.Append("test", []byte("taken over"))
	lease := l.lose(t, e, successor, old, next)

	haunt := func(when string) {
		t.Helper()
		if w == nil {
			return
		}
		before, run := kit.Dump(t, e.Store, id, "queue", runstore.IndexRuns), e.Get(t, id)
		for _, s := range []runstore.RunStore{former, successor} {
			err := w.do(t, s, old, first)
			what := fmt.Sprintf("%s: a zombie's %s %s", l.name, w.name, when)
			if w.name == "repeated-acquire" {
				grantEnded(t, what, err, old, run)
			} else {
				kit.CheckFenced(t, what, err, old, run)
			}
		}
		kit.CheckUnchanged(t, "a zombie's "+w.name+" "+when, before, kit.Dump(t, e.Store, id, "queue", runstore.IndexRuns))
		if after := e.Get(t, id); !after.ExpiresAt.Equal(run.ExpiresAt) {
			t.Errorf("a zombie's %s %s moved the expiry from %v to %v", w.name, when, run.ExpiresAt, after.ExpiresAt)
		}
	}
	haunt("right after the takeover")
	b := kit.Appending(lease, "went on")
	b.Put("claim", []byte("two"), runstore.Place{Index: "queue", At: runstore.After(0)})
	kit.MustApply(t, successor, "the second holder's batch", b)
	if err := kit.Renew(t, successor, lease, 2*harness.TTL); err != nil {
		t.Errorf("renewal by the second holder: %v", err)
	}
	haunt("after the next commit")
	text := kit.Dump(t, e.Store, id, "queue", runstore.IndexRuns, runstore.IndexRunnable)
	return strings.ReplaceAll(text, string(id), "run")
}
