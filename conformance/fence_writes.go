package conformance

import (
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

func batchReleases(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := appending(lease, "last")
	b.Release = true
	applied(t, e.Store, "the releasing batch", b)
	run := e.Get(t, "run")
	if run.Holder != (runstore.Holder{}) || run.Token != lease.Token || !run.ExpiresAt.Equal(lease.ExpiresAt) {
		t.Errorf("after the release: holder %s, token %v, expiry %v; want nobody, %v and %v",
			holderText(run.Holder), run.Token, run.ExpiresAt, lease.Token, lease.ExpiresAt)
	}
	before := dump(t, e.Store, "run")
	checkFenced(t, "commit after its own release", commitOnly(t, e.Store, lease), lease, run)
	checkFenced(t, "renewal after its own release", renew(t, e.Store, lease, TTL), lease, run)
	if err := release(t, e.Store, lease); err != nil {
		t.Errorf("release of the grant that was released last: %v", err)
	}
	checkUnchanged(t, "a released grant", before, dump(t, e.Store, "run"))
	if next := e.Acquire(t, e.Store, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("the next token is %v, want %v", next.Token, lease.Token+1)
	}
}

func revocation(t T, e *Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	b := runstore.NewBatch("run", runstore.Unguarded("an operator ends the grant"))
	b.Append("revoked", []byte("by an operator"))
	b.Release = true
	applied(t, e.Reopen(t), "revocation", b)
	run := e.Get(t, "run")
	if run.Holder != (runstore.Holder{}) || run.Token != lease.Token {
		t.Errorf("after the revocation: holder %s, token %v; want nobody, %v", holderText(run.Holder), run.Token, lease.Token)
	}
	before := dump(t, e.Store, "run")
	checkFenced(t, "commit after the revocation", commitOnly(t, e.Store, lease), lease, run)
	checkFenced(t, "renewal after the revocation", renew(t, e.Store, lease, TTL), lease, run)
	checkFenced(t, "release after the revocation", release(t, e.Store, lease), lease, run)
	checkUnchanged(t, "a revoked grant", before, dump(t, e.Store, "run"))
	if got, want := journalText(journal(t, e.Store, "run")), "by an operator@0"; got != want {
		t.Errorf("the journal is %q, want %q: a write without a fence is under no token", got, want)
	}
	if next := e.Acquire(t, e.Store, "run", "next"); next.Token != lease.Token+1 {
		t.Errorf("the next token is %v, want %v", next.Token, lease.Token+1)
	}
	b = runstore.NewBatch("absent", runstore.Unguarded("an operator ends the grant"))
	b.Release = true
	_, err := e.Store.Commit(t.Context(), b)
	Refused(t, "revocation on a run that is not there", err, runstore.ErrNotFound)
}

func guardedAcquire(t T, e *Env) {
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
			before := dump(t, e.Store, "run")
			req := acquire("run", "a", TTL)
			req.Preempt = preempt
			req.Guards = []runstore.Guard{guard}
			req.Writes.Append("granted", nil)
			_, err := e.Store.AcquireLease(t.Context(), req)
			Refused(t, "acquire with a "+what+" guard that fails", err, runstore.ErrConflict)
			checkUnchanged(t, "a refused acquire", before, dump(t, e.Store, "run"))
		}
	}
	req := acquire("run", "a", TTL)
	req.Guards = []runstore.Guard{runstore.InStatus(1, 2), runstore.AtVersion("record", 1), runstore.AtVersion("absent", 0), runstore.AtSeq(2)}
	lease := mustAcquire(t, e.Store, req)
	if lease.Token != 1 {
		t.Errorf("refused acquires burnt tokens: the first grant has token %v, want 1", lease.Token)
	}
	// A held lease is reported before any failing guard: the contender has nothing to read again.
	req = acquire("run", "b", TTL)
	req.Guards = []runstore.Guard{runstore.AtSeq(99)}
	_, err := e.Store.AcquireLease(t.Context(), req)
	checkLeaseHeld(t, "acquire of a held lease with a guard that fails", err, lease, TTL)
}

func carriedWrites(t T, e *Env) {
	full := func(w *runstore.Writes, name string) {
		first := w.Append(name, []byte(name))
		w.Append(name, []byte(name+" too"))
		w.Put("record", []byte(name), runstore.Place{Index: "queue", At: runstore.After(0)})
		w.Records[len(w.Records)-1].Event = first + 1
	}
	spec := withLease("run", "creator")
	full(&spec.Writes, "created")
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if created.Run.LastSeq != 2 || created.Run.Holder.Owner != "creator" {
		t.Errorf("created with seq %d, holder %s; want 2, creator", created.Run.LastSeq, holderText(created.Run.Holder))
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

	req := acquire("run", "acquirer", TTL)
	full(&req.Writes, "acquired")
	later := runstore.Status(5)
	req.Writes.Status = &later
	req.Writes.Runnable = runstore.Never()
	mustAcquire(t, e.Store, req)

	want := "created@1 created too@1 released@1 released too@1 acquired@2 acquired too@2"
	events := journal(t, e.Store, "run")
	if got := journalText(events); got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
	for i, owner := range []runstore.Owner{"creator", "creator", "creator", "creator", "acquirer", "acquirer"} {
		if i < len(events) && events[i].Owner != owner {
			t.Errorf("event %d was written by %q, want %q", i+1, events[i].Owner, owner)
		}
	}
	text := dump(t, e.Store, "run", "queue")
	for _, want := range []string{
		"run status=5 seq=6 token=2", "runnable=false",
		`record "record" v3 "acquired" created=2 updated=6`, `index "queue" "record" v3`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the run is\n%swant it to contain %q", text, want)
		}
	}
}

func preemptIsVisible(t T, e *Env) {
	e.Create(t, "run")
	preempted := func(what string, want runstore.Preempted) {
		t.Helper()
		if got := e.Get(t, "run").Holder.Preempted; got != want {
			t.Errorf("%s: the run shows preempted %+v, want %+v", what, got, want)
		}
	}
	mustAcquire(t, e.Store, preempting("run", "first", "nobody is there"))
	preempted("preempt of a free lease", runstore.Preempted{})
	mustAcquire(t, e.Reopen(t), preempting("run", "second", "stuck since noon"))
	preempted("preempt of a live lease", runstore.Preempted{From: "first", Reason: "stuck since noon"})
	third := mustAcquire(t, e.Store, preempting("run", "third", "still stuck"))
	preempted("a second preempt", runstore.Preempted{From: "second", Reason: "still stuck"})
	if err := renew(t, e.Store, third, 2*TTL); err != nil {
		t.Fatalf("renew: %v", err)
	}
	e.Append(t, e.Store, third, "work")
	preempted("the preempter's renewal and commit", runstore.Preempted{From: "second", Reason: "still stuck"})
	mustRelease(t, e.Store, third)
	preempted("release", runstore.Preempted{})
	short := mustAcquire(t, e.Store, acquire("run", "fourth", e.ShortTTL()))
	preempted("an ordinary grant", runstore.Preempted{})
	expire(t, e)
	fifth := mustAcquire(t, e.Store, preempting("run", "fifth", "expired anyway"))
	preempted("preempt of an expired lease", runstore.Preempted{})
	if fifth.Token != short.Token+1 {
		t.Errorf("preempt of an expired lease got token %v, want %v", fifth.Token, short.Token+1)
	}
}

func refusedIsForgotten(t T, e *Env) {
	e.Create(t, "run")
	old := e.Acquire(t, e.Store, "run", "old")
	current := mustAcquire(t, e.Store, preempting("run", "new", "test"))
	zombie := appending(old, "zombie")
	zombie.ID = "batch"
	for i := range 2 {
		_, err := e.Store.Commit(t.Context(), zombie)
		checkFenced(t, fmt.Sprintf("attempt %d of a zombie's batch", i+1), err, old, e.Get(t, "run"))
	}
	b := appending(current, "current")
	b.ID = "batch"
	if done := applied(t, e.Store, "the current holder's batch of that id", b); done.Replayed || done.LastSeq != 1 {
		t.Errorf("the current holder's batch of that id: %+v, want seq 1, not replayed", done)
	}
	if got, want := journalText(journal(t, e.Store, "run")), "current@2"; got != want {
		t.Errorf("the journal is %q, want %q", got, want)
	}
}
