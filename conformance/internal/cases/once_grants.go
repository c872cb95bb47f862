package cases

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// GrantResults returns the cases that prove that creations, grants, renewals and releases return
// the results of their writes, and that a repeat gets the first result (I8).
func GrantResults() []harness.Case {
	return []harness.Case{
		{Guarantee: "I4", Name: "grants-renewals-and-releases-return-what-they-wrote", Run: grantsReturnResults, Doc: `
			A create, an acquire, a renewal and a release each carry two events and two records, the renewal a status
			and a runnable time too. Each returns the seqs, versions and time of its own writes, and events and
			records carry that time; without writes the result has none. A store that drops the writes of a renewal,
			or its status, or returns the run's last seq alone, fails.`},
		{Guarantee: "I8", Name: "a-repeated-acquire-with-writes-gets-the-first-result", Run: acquireResult, Doc: `
			A caller repeats an acquire with writes while its grant is current, after its release, and after later
			grants, also as a preempt and through another handle. Each repeat returns the first grant and result,
			says whether the grant has ended, with no later expiry than the first, and changes nothing; a commit under
			an ended one is ErrFenced. A store that does not say so lets a driver go on.`},
		{Guarantee: "I8", Name: "a-repeated-renewal-with-writes-gets-the-first-result", Run: renewalResult, Doc: `
			A caller repeats a renewal that carries a checkpoint under an id: at once, after another commit, and
			after a preempt. Each repeat returns the first result and writes nothing; a renewal under another id
			applies, and one that was never applied is ErrFenced after the preempt. A store that ignores the id
			writes the checkpoint twice.`},
		{Guarantee: "I8", Name: "a-repeated-release-with-writes-gets-the-first-result", Run: releaseResult, Doc: `
			A caller repeats a release with writes while the lease is free, under later grants and after them,
			through two handles. Each repeat returns the first result and changes nothing; a release under the former
			grant id with a later token is ErrFenced. A store that forgets the result reports to a driver that its
			last writes were lost.`},
		{Guarantee: "I8", Name: "a-release-of-a-reused-grant-id-has-its-own-result", Run: reusedGrantID, Doc: `
			A caller reuses a grant id that the store no longer recognises, and releases both grants with writes. A
			repeat of each release, at once and after later grants, returns the result of that release. A store that
			looks results up by the id alone returns the first one, or refuses a release that it applied.`},
		{Guarantee: "I8", Name: "ids-of-batches-grants-and-releases-do-not-collide", Run: resultNames, Doc: `
			One text is the id of a batch, of a grant and so of its release. Each of the three applies and gets a seq
			of its own, and a repeat of each returns its own first result. A store that keeps all ids in one
			namespace takes the acquire or the release for a repeat of the batch.`},
		{Guarantee: "I8", Name: "a-purged-run-forgets-the-results-of-its-grants", Run: resultsPurged, Doc: `
			A run whose acquire carried an event is purged, and copies of that acquire arrive. Before the run exists
			again the copy is ErrNotFound, afterwards ErrFenced through both handles, and the new run stays empty. A
			store that keeps the old result returns a grant, and an event, that the new run never had.`},
	}
}

// sameResult fails the case unless got is the first result, marked as replayed.
func sameResult(t harness.T, what string, got, first runstore.Committed) {
	t.Helper()
	first.Replayed = true
	kit.Equal(t, what+": result", fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", first))
}

// noLaterExpiry fails the case if the repeat of a request whose grant has ended returns a later
// expiry than the first reply.
func noLaterExpiry(t harness.T, what string, again, first runstore.Lease) {
	t.Helper()
	if again.ExpiresAt.After(first.ExpiresAt) {
		t.Errorf("%s: the lease expires at %v, want no later than %v, as first returned", what, again.ExpiresAt, first.ExpiresAt)
	}
}

// fill adds two events and two records to w.
func fill(w *runstore.Writes, text string) {
	w.Append("first", []byte(text))
	second := w.Append("second", []byte(text))
	w.Put("kept", []byte(text))
	w.Put(runstore.RecordKey("of "+text), []byte(text), runstore.Place{Index: "queue", At: runstore.After(0)})
	w.Records[len(w.Records)-1].Event = second
}

// checkResult fails the case unless done is the result of writes of fill that followed seq last and
// gave the record "kept" version v.
func checkResult(t harness.T, e *harness.Env, what, text string, done runstore.Committed, last runstore.Seq, v runstore.Version) {
	t.Helper()
	if done.Replayed || done.FirstSeq != last+1 || done.LastSeq != last+2 || len(done.Versions) != 2 || done.Versions[0] != v || done.Versions[1] != 1 {
		t.Errorf("%s: got %+v, want seqs %d to %d and versions %d and 1", what, done, last+1, last+2, v)
	}
	events := kit.Journal(t, e.Store, "run")
	if got := events[len(events)-1]; !got.Time.Equal(done.Time) || string(got.Data) != text {
		t.Errorf("%s: the last event is %q of %v, want %q of the result's time %v", what, got.Data, got.Time, text, done.Time)
	}
	if got := kit.Record(t, e.Store, "run", runstore.RecordKey("of "+text)); got.Updated.Seq != done.LastSeq || !got.Updated.Time.Equal(done.Time) {
		t.Errorf("%s: the record is stamped %+v, want seq %d and %v", what, got.Updated, done.LastSeq, done.Time)
	}
}

func grantsReturnResults(t harness.T, e *harness.Env) {
	spec := kit.WithLease("run", "a")
	fill(&spec.Writes, "created")
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	checkResult(t, e, "create", "created", created.Committed, 0, 1)
	kit.Equal(t, "time of the creation", created.Run.CreatedAt, created.Committed.Time)

	req := kit.Preempting("run", "b", "test")
	fill(&req.Writes, "granted")
	granted, err := e.Store.AcquireLease(t.Context(), req)
	if err != nil || granted.Ended {
		t.Fatalf("acquire: ended %t, error %v", granted.Ended, err)
	}
	checkResult(t, e, "acquire", "granted", granted.Committed, 2, 2)

	renew := runstore.RenewRequest{Fence: granted.Fence(), TTL: harness.TTL}
	fill(&renew.Writes, "renewed")
	status, runnableAt := runstore.Status(3), time.Unix(1_900_000_000, 0)
	renew.Writes.Status, renew.Writes.Runnable = &status, runstore.At(runnableAt)
	renewed, err := e.Store.RenewLease(t.Context(), renew)
	if err != nil || renewed.Token != granted.Token {
		t.Fatalf("renew: token %v, error %v; want %v", renewed.Token, err, granted.Token)
	}
	checkResult(t, e, "renew", "renewed", renewed.Committed, 4, 3)
	if run := e.Get(t, "run"); run.Status != status || !run.RunnableAt.Equal(runnableAt) {
		t.Errorf("after the renewal the run has status %d and is runnable at %v, want %d and %v", run.Status, run.RunnableAt, status, runnableAt)
	}
	events := kit.Journal(t, e.Store, "run")
	if last := events[len(events)-1]; last.Token != granted.Token || last.Owner != "b" {
		t.Errorf("the renewal's event is by %q under %v, want b under %v", last.Owner, last.Token, granted.Token)
	}

	release := runstore.ReleaseRequest{Fence: granted.Fence()}
	fill(&release.Writes, "released")
	done, err := e.Store.ReleaseLease(t.Context(), release)
	if err != nil {
		t.Fatalf("release: %v", err)
	}
	checkResult(t, e, "release", "released", done, 6, 4)

	bare, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "c", harness.TTL))
	if err != nil || bare.Committed.FirstSeq != 0 || bare.Committed.LastSeq != 8 || bare.Committed.Replayed || len(bare.Committed.Versions) != 0 {
		t.Errorf("an acquire without writes: %+v, error %v; want last seq 8 and nothing else", bare.Committed, err)
	}
	kit.Equal(t, "time of the grant", bare.Committed.Time, e.Get(t, "run").Holder.GrantedAt)
	if plain, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: bare.Fence(), TTL: harness.TTL}); err != nil || plain.Committed.FirstSeq != 0 || len(plain.Committed.Versions) != 0 {
		t.Errorf("a renewal without writes: %+v, error %v; want no result of writes", plain.Committed, err)
	}
}

func acquireResult(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "a", harness.TTL)
	fill(&req.Writes, "granted")
	status := runstore.Status(3)
	req.Writes.Status = &status
	first, err := e.Store.AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	repeat := func(when string, ended bool) {
		t.Helper()
		before := kit.Dump(t, e.Store, "run", "queue")
		preempt := req
		preempt.Preempt = "so that nothing but the grant id can stop it"
		for _, again := range []runstore.AcquireRequest{req, preempt} {
			for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
				got, err := s.AcquireLease(t.Context(), again)
				if err != nil || got.Ended != ended || got.Token != first.Token || got.Grant != first.Grant || got.Owner != "a" {
					t.Errorf("%s: got %+v, error %v; want the first grant, ended %t", when, got, err, ended)
					continue
				}
				sameResult(t, when, got.Committed, first.Committed)
				kit.Equal(t, when+": end of the grant before", got.Former, first.Former)
				if ended {
					noLaterExpiry(t, when, got.Lease, first.Lease)
				}
			}
		}
		kit.CheckUnchanged(t, when, before, kit.Dump(t, e.Store, "run", "queue"))
	}
	repeat("the grant is current", false)
	e.Append(t, e.Store, first.Lease, "more")
	repeat("the grant is current, and more was written", false)
	kit.MustRelease(t, e.Store, first.Lease)
	repeat("the grant was released", true)
	second := e.Acquire(t, e.Store, "run", "b")
	repeat("another grant is current", true)
	for i := range e.Scaled(t, "grants in between", 4, 40) {
		req := kit.Preempting("run", "c", fmt.Sprint("grant ", i))
		req.Writes.Append("taken", nil)
		second = kit.MustAcquire(t, e.Store, req)
	}
	repeat("many grants with writes have been made since", true)
	e.Append(t, e.Store, second, "still held")
	_, err = e.Store.Commit(t.Context(), kit.Appending(first.Lease, "zombie"))
	kit.CheckFenced(t, "a commit under the lease that the repeat returned", err, first.Lease, e.Get(t, "run"))
}

func renewalResult(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	req := runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL, ID: runstore.NewBatchID()}
	fill(&req.Writes, "checkpoint")
	first, err := e.Store.RenewLease(t.Context(), req)
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	repeat := func(when string, ended bool) {
		t.Helper()
		before := kit.Dump(t, e.Store, "run", "queue")
		for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
			again, err := s.RenewLease(t.Context(), req)
			if err != nil || again.Token != lease.Token {
				t.Errorf("%s: token %v, error %v; want %v", when, again.Token, err, lease.Token)
				continue
			}
			sameResult(t, when, again.Committed, first.Committed)
			if ended {
				noLaterExpiry(t, when, again.Lease, first.Lease)
			}
		}
		kit.CheckUnchanged(t, when, before, kit.Dump(t, e.Store, "run", "queue"))
	}
	repeat("the renewal, repeated", false)
	e.Append(t, e.Store, lease, "more")
	repeat("the renewal, repeated after another commit", false)
	next := req
	next.ID = runstore.NewBatchID()
	next.Writes = runstore.Writes{}
	next.Writes.Append("first", []byte("next"))
	if done, err := e.Store.RenewLease(t.Context(), next); err != nil || done.Committed.FirstSeq != 4 || done.Committed.Replayed {
		t.Errorf("a renewal under another id: %+v, error %v; want seq 4", done.Committed, err)
	}
	taken := kit.MustAcquire(t, e.Store, kit.Preempting("run", "b", "test"))
	repeat("the renewal, repeated when the grant has ended", true)
	zombie := req
	zombie.ID = runstore.NewBatchID()
	_, err = e.Store.RenewLease(t.Context(), zombie)
	kit.CheckFenced(t, "a first renewal with writes when the grant has ended", err, lease, e.Get(t, "run"))
	e.Append(t, e.Store, taken, "still held")
}

func releaseResult(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	req := runstore.ReleaseRequest{Fence: lease.Fence()}
	fill(&req.Writes, "released")
	first, err := e.Store.ReleaseLease(t.Context(), req)
	if err != nil {
		t.Fatalf("release: %v", err)
	}
	repeat := func(when string) {
		t.Helper()
		before := kit.Dump(t, e.Store, "run", "queue")
		for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
			again, err := s.ReleaseLease(t.Context(), req)
			if err != nil {
				t.Errorf("%s: %v", when, err)
				continue
			}
			sameResult(t, when, again, first)
		}
		kit.CheckUnchanged(t, when, before, kit.Dump(t, e.Store, "run", "queue"))
	}
	repeat("the lease is free")
	next := e.Acquire(t, e.Store, "run", "a")
	repeat("the same owner has the lease again")
	kit.MustRelease(t, e.Store, next)
	repeat("the lease was released again")
	for range e.Scaled(t, "grants in between", 2, 20) {
		next = e.Acquire(t, e.Store, "run", "b")
		e.Append(t, e.Store, next, "more")
		kit.MustRelease(t, e.Store, next)
	}
	repeat("other holders came and went")
	forged := lease
	forged.Token = next.Token
	forgedReq := req
	forgedReq.Fence = forged.Fence()
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	_, err = e.Store.ReleaseLease(t.Context(), forgedReq)
	kit.CheckFenced(t, "a release under the former grant id and the last token", err, forged, run)
	kit.CheckUnchanged(t, "a forged release", before, kit.Dump(t, e.Store, "run"))
}

// reusedGrantID releases two grants of one id, with writes. The second grant is made once the store
// no longer recognizes the id of the first but still remembers its release.
func reusedGrantID(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	reused := kit.Preempting("run", "a", "test")
	for round := range 2 {
		granted, err := e.Store.AcquireLease(t.Context(), reused)
		if round > 0 && errors.Is(err, runstore.ErrFenced) {
			t.Logf("the store recognises more than %d former grants", runstore.RememberedGrants)
			return
		}
		if err != nil {
			t.Fatalf("grant %d of the id: %v", round+1, err)
		}
		req := runstore.ReleaseRequest{Fence: granted.Fence()}
		req.Writes.Append("released", nil)
		first, err := e.Store.ReleaseLease(t.Context(), req)
		if want := runstore.Seq(round + 1); err != nil || first.Replayed || first.FirstSeq != want {
			t.Fatalf("release %d: got %+v, error %v; want seq %d", round+1, first, err, want)
		}
		repeat := func(when string) {
			t.Helper()
			again, err := e.Store.ReleaseLease(t.Context(), req)
			if err != nil {
				t.Errorf("release %d, repeated when %s: %v", round+1, when, err)
				return
			}
			sameResult(t, fmt.Sprintf("release %d, repeated when %s", round+1, when), again, first)
		}
		repeat("the lease is free")
		for range runstore.RememberedGrants + 1 {
			kit.MustAcquire(t, e.Store, kit.Preempting("run", "b", "test"))
		}
		repeat("others have had the lease since")
	}
}

// resultNames uses one text as the id of a batch and of a grant, and so of the grant's release.
func resultNames(t harness.T, e *harness.Env) {
	const id = "one and the same"
	e.Create(t, "run")
	b := runstore.NewBatch("run", runstore.AtSeq(1))
	b.ID = id
	b.Append("batch", nil)
	kit.MustApply(t, e.Store, "batch", b)
	req := kit.Acquiring("run", "a", harness.TTL)
	req.Grant = id
	req.Writes.Append("grant", nil)
	granted, err := e.Store.AcquireLease(t.Context(), req)
	if err != nil || granted.Committed.Replayed || granted.Committed.FirstSeq != 2 {
		t.Fatalf("acquire: %+v, error %v; want seq 2", granted.Committed, err)
	}
	release := runstore.ReleaseRequest{Fence: granted.Fence()}
	release.Writes.Append("release", nil)
	done, err := e.Store.ReleaseLease(t.Context(), release)
	if err != nil || done.Replayed || done.FirstSeq != 3 {
		t.Fatalf("release: %+v, error %v; want seq 3", done, err)
	}
	again, err := e.Store.Commit(t.Context(), b)
	if err != nil || again.FirstSeq != 1 || !again.Replayed {
		t.Errorf("the batch, repeated: %+v, error %v; want seq 1, replayed", again, err)
	}
	if got, err := e.Store.AcquireLease(t.Context(), req); err != nil || got.Committed.FirstSeq != 2 || !got.Ended {
		t.Errorf("the acquire, repeated: %+v, error %v; want seq 2, ended", got, err)
	}
	if got, err := e.Store.ReleaseLease(t.Context(), release); err != nil || got.FirstSeq != 3 || !got.Replayed {
		t.Errorf("the release, repeated: %+v, error %v; want seq 3, replayed", got, err)
	}
}

func resultsPurged(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "a", harness.TTL)
	req.Writes.Append("granted", []byte("of the former run"))
	lease := kit.MustAcquire(t, e.Store, req)
	purge(t, e.Store, lease)
	_, err := e.Store.AcquireLease(t.Context(), req)
	harness.Refused(t, "a copy of the acquire after the purge", err, runstore.ErrNotFound)
	e.Create(t, "run")
	before, run := kit.Dump(t, e.Store, "run"), e.Get(t, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		_, err = s.AcquireLease(t.Context(), req)
		grantEnded(t, "a copy of the acquire in the next run of that id", err, lease, run)
	}
	kit.CheckUnchanged(t, "copies from the former run", before, kit.Dump(t, e.Store, "run"))
}
