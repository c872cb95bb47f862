package cases

import (
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

func batchReleases(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := kit.Appending(lease, "last")
	b.Release = true
	kit.MustApply(t, e.Store, "the releasing batch", b)
	run := e.Get(t, "run")
	if run.Holder != (runstore.Holder{}) || run.Token != lease.Token || !run.ExpiresAt.Equal(lease.ExpiresAt) {
		t.Errorf("after the release: holder %s, token %v, expiry %v; want nobody, %v and %v",
			kit.HolderText(run.Holder), run.Token, run.ExpiresAt, lease.Token, lease.ExpiresAt)
	}
	before := kit.Dump(t, e.Store, "run")
	kit.CheckFenced(t, "commit after its own release", commitOnly(t, e.Store, lease), lease, run)
	kit.CheckFenced(t, "renewal after its own release", kit.Renew(t, e.Store, lease, harness.TTL), lease, run)
	if err := kit.Release(t, e.Store, lease); err != nil {
		t.Errorf("release of the grant that was released last: %v", err)
	}
	kit.CheckUnchanged(t, "a released grant", before, kit.Dump(t, e.Store, "run"))
	if next := e.Acquire(t, e.Store, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("the next token is %v, want %v", next.Token, lease.Token+1)
	}
}

func revocation(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := runstore.NewBatch("run", runstore.Unguarded("an operator ends the grant"))
	b.Append("revoked", []byte("by an operator"))
	b.Release = true
	kit.MustApply(t, e.Reopen(t), "revocation", b)
	run := e.Get(t, "run")
	if run.Holder != (runstore.Holder{}) || run.Token != lease.Token {
		t.Errorf("after the revocation: holder %s, token %v; want nobody, %v", kit.HolderText(run.Holder), run.Token, lease.Token)
	}
	before := kit.Dump(t, e.Store, "run")
	kit.CheckFenced(t, "commit after the revocation", commitOnly(t, e.Store, lease), lease, run)
	kit.CheckFenced(t, "renewal after the revocation", kit.Renew(t, e.Store, lease, harness.TTL), lease, run)
	kit.CheckFenced(t, "release after the revocation", kit.Release(t, e.Store, lease), lease, run)
	kit.CheckUnchanged(t, "a revoked grant", before, kit.Dump(t, e.Store, "run"))
	if got, want := kit.JournalText(kit.Journal(t, e.Store, "run")), "by an operator@0"; got != want {
		t.Errorf("the journal is %q, want %q: a write without a fence is under no token", got, want)
	}
	if next := e.Acquire(t, e.Store, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("the next token is %v, want %v", next.Token, lease.Token+1)
	}
	b = runstore.NewBatch("absent", runstore.Unguarded("an operator ends the grant"))
	b.Release = true
	_, err := e.Store.Commit(t.Context(), b)
	harness.Refused(t, "revocation on a run that is not there", err, runstore.ErrNotFound)
}

func guardedAcquire(t harness.T, e *harness.Env) {
	spec := runstore.RunSpec{ID: "run", Status: 2}
	spec.Writes.Append("begun", nil)
	spec.Writes.Put("record", []byte("one"))
	if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	for what, guard := range map[string]runstore.Guard{
		"status": runstore.InStatus(1, 3), "version": runstore.AtVersion("record", 2),
		"absence": runstore.AtVersion("record", 0), "seq": runstore.AtSeq(1),
	} {
		for _, preempt := range []string{"", "test"} {
			before := kit.Dump(t, e.Store, "run")
			req := kit.Acquiring("run", "a", harness.TTL)
			req.Preempt = preempt
			req.Guards = []runstore.Guard{guard}
			req.Writes.Append("granted", nil)
			_, err := e.Store.AcquireLease(t.Context(), req)
			harness.Refused(t, "acquire with a "+what+" guard that fails", err, runstore.ErrConflict)
			kit.CheckUnchanged(t, "a refused acquire", before, kit.Dump(t, e.Store, "run"))
		}
	}
	req := kit.Acquiring("run", "a", harness.TTL)
	req.Guards = []runstore.Guard{runstore.InStatus(1, 2), runstore.AtVersion("record", 1), runstore.AtVersion("absent", 0), runstore.AtSeq(2)}
	lease := kit.MustAcquire(t, e.Store, req)
	if lease.Token != 1 {
		t.Errorf("refused acquires burnt tokens: the first grant has token %v, want 1", lease.Token)
	}
	// A held lease is reported before any failing guard: the contender has nothing to read again.
	req = kit.Acquiring("run", "b", harness.TTL)
	req.Guards = []runstore.Guard{runstore.AtSeq(99)}
	_, err := e.Store.AcquireLease(t.Context(), req)
	kit.CheckLeaseHeld(t, "acquire of a held lease with a guard that fails", err, lease, harness.TTL)
}

func carriedWrites(t harness.T, e *harness.Env) {
	full := func(w *runstore.Writes, name string) {
		first := w.Append(name, []byte(name))
		w.Append(name, []byte(name+" too"))
		w.Put("record", []byte(name), runstore.Place{Index: "queue", At: runstore.After(0)})
		w.Records[len(w.Records)-1].Event = first + 1
	}
	spec := kit.WithLease("run", "creator")
	full(&spec.Writes, "created")
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if created.Run.LastSeq != 2 || created.Run.Holder.Owner != "creator" {
		t.Errorf("created with seq %d, holder %s; want 2, creator", created.Run.LastSeq, kit.HolderText(created.Run.Holder))
	}

	ended := runstore.ReleaseRequest{Fence: created.Lease.Fence()}
	full(&ended.Writes, "released")
	status := runstore.Status(4)
	ended.Writes.Status = &status
	ended.Writes.Runnable = runstore.After(0)
	done, err := e.Store.ReleaseLease(t.Context(), ended)
	if err != nil {
		t.Fatalf("release: %v", err)
	}
	if done.FirstSeq != 3 || done.LastSeq != 4 || len(done.Versions) != 1 || done.Versions[0] != 2 {
		t.Errorf("release gave %+v, want seqs 3 to 4 and version 2", done)
	}

	req := kit.Acquiring("run", "acquirer", harness.TTL)
	full(&req.Writes, "acquired")
	later := runstore.Status(5)
	req.Writes.Status = &later
	req.Writes.Runnable = runstore.Never()
	kit.MustAcquire(t, e.Store, req)

	want := "created@1 created too@1 released@1 released too@1 acquired@2 acquired too@2"
	events := kit.Journal(t, e.Store, "run")
	if got := kit.JournalText(events); got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
	for i, owner := range []runstore.Owner{"creator", "creator", "creator", "creator", "acquirer", "acquirer"} {
		if i < len(events) && events[i].Owner != owner {
			t.Errorf("event %d was written by %q, want %q", i+1, events[i].Owner, owner)
		}
	}
	text := kit.Dump(t, e.Store, "run", "queue")
	for _, want := range []string{
		"run status=5 seq=6 token=2", "runnable=false",
		`record "record" v3 "acquired" created=2 updated=6`, `index "queue" "record" v3`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the run is\n%swant it to contain %q", text, want)
		}
	}
}

func preemptIsVisible(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	preempted := func(what string, want runstore.Preempted) {
		t.Helper()
		if got := e.Get(t, "run").Holder.Preempted; got != want {
			t.Errorf("%s: the run shows preempted %+v, want %+v", what, got, want)
		}
	}
	kit.MustAcquire(t, e.Store, kit.Preempting("run", "first", "nobody is there"))
	preempted("preempt of a free lease", runstore.Preempted{})
	kit.MustAcquire(t, e.Reopen(t), kit.Preempting("run", "second", "stuck since noon"))
	preempted("preempt of a live lease", runstore.Preempted{From: "first", Reason: "stuck since noon"})
	third := kit.MustAcquire(t, e.Store, kit.Preempting("run", "third", "still stuck"))
	preempted("a second preempt", runstore.Preempted{From: "second", Reason: "still stuck"})
	if err := kit.Renew(t, e.Store, third, 2*harness.TTL); err != nil {
		t.Fatalf("renew: %v", err)
	}
	e.Append(t, e.Store, third, "work")
	preempted("the preempter's renewal and commit", runstore.Preempted{From: "second", Reason: "still stuck"})
	kit.MustRelease(t, e.Store, third)
	preempted("release", runstore.Preempted{})
	short := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "fourth", e.ShortTTL()))
	preempted("an ordinary grant", runstore.Preempted{})
	kit.Expire(t, e)
	fifth := kit.MustAcquire(t, e.Store, kit.Preempting("run", "fifth", "expired anyway"))
	preempted("preempt of an expired lease", runstore.Preempted{})
	if fifth.Token != short.Token+1 {
		t.Errorf("preempt of an expired lease got token %v, want %v", fifth.Token, short.Token+1)
	}
}

func refusedIsForgotten(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	current := kit.MustAcquire(t, e.Store, kit.Preempting("run", "new", "test"))
	zombie := kit.Appending(old, "zombie")
	zombie.ID = "batch"
	for i := range 2 {
		_, err := e.Store.Commit(t.Context(), zombie)
		kit.CheckFenced(t, fmt.Sprintf("attempt %d of a zombie's batch", i+1), err, old, e.Get(t, "run"))
	}
	b := kit.Appending(current, "current")
	b.ID = "batch"
	if done := kit.MustApply(t, e.Store, "the current holder's batch of that id", b); done.Replayed || done.LastSeq != 1 {
		t.Errorf("the current holder's batch of that id: %+v, want seq 1, not replayed", done)
	}
	if got, want := kit.JournalText(kit.Journal(t, e.Store, "run")), "current@2"; got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
}
