package cases

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Progress returns the cases that prove I13: a holder that renews without progress is refused.
func Progress() []harness.Case {
	return []harness.Case{
		{Guarantee: "I13", Name: "a-holder-without-progress-is-refused", Run: stalledHolder, Doc: `
			A holder with a bound on stalling renews after that time without progress, through two handles. Each
			renewal is ErrNoProgress with bound and stalled time, and changes nothing; the lease is still held, and a
			commit still applies. A store that ignores the bound lets a hung driver keep its run; one that ends the
			grant refuses a holder that comes back.`},
		{Guarantee: "I13", Name: "a-stalled-run-is-taken-over-at-its-expiry", Run: stalledTakeover, Doc: `
			A holder stalls beyond its bound, its lease expires, and its late renewal is ErrNoProgress. Another owner
			then acquires the lease, without a bound and with progress from the time of its grant, and writes; the old
			holder's commit is ErrFenced. A store that grants a late renewal without progress keeps the run with a
			driver that hangs; one that leaves the old time of progress takes the successor for stalled.`},
		{Guarantee: "I13", Name: "events-and-records-under-the-fence-are-progress", Run: progressResumes, Doc: `
			A stalled holder is refused a renewal, then commits an event, a record, a deletion, or an event with a
			status, and renews. Each of these commits makes the renewal succeed. A store that counts events alone as
			progress refuses a driver that works on records.`},
		{Guarantee: "I13", Name: "a-late-commit-is-progress", Run: lateProgress, Doc: `
			A holder with a bound stalls until its lease has expired, and its renewal is ErrNoProgress. Nobody else
			acquires the lease. Then it commits an event, or a record alone, and its next renewal succeeds; the run
			shows the time of the commit as progress. A store that counts a commit as progress only while the lease
			is live refuses a holder that has come back to its work.`},
		{Guarantee: "I13", Name: "heartbeats-refusals-and-others-writes-are-no-progress", Run: noProgress, Doc: `
			A stalling holder renews, commits a batch that is refused, one of guards only, and a status alone; others
			append a signal and claim a record. None moves the time of the holder's last progress, and at the end its
			renewal is ErrNoProgress. A store that counts one of them lets a driver that hangs keep its run.`},
		{Guarantee: "I13", Name: "a-renewal-with-writes-is-progress", Run: renewalProgress, Doc: `
			A stalled holder renews without writes, with a status alone, and with a checkpoint. The first two are
			ErrNoProgress and write nothing; the third renews, and the run shows that time as progress and renewal,
			with the new TTL and expiry. A store that judges a renewal before its own writes refuses a driver that
			reports progress by its heartbeat.`},
		{Guarantee: "I13", Name: "without-a-bound-a-holder-may-stall", Run: unboundedStall, Doc: `
			A holder without a bound renews after some time without progress. The same owner then takes and releases a
			lease with a bound, and the next holder, without one, renews late too. Both renewals succeed. A store with
			a default bound, or that leaves one grant's bound to the next, refuses them.`},
		{Guarantee: "I13", Name: "a-run-shows-its-holders-progress", Run: showsProgress, Doc: `
			A holder with a bound is granted the lease, appends, renews, and commits over two runs (where the store
			can). After each step another handle reads the times of grant, renewal and progress, the TTL and the
			bound, each moved by that step alone. A store that takes a heartbeat for progress, or shows old times,
			fails.`},
	}
}

// stalling acquires a lease with a bound on stalling, which the case waits for. The lease outlasts
// the bound.
func stalling(t harness.T, e *harness.Env, bound time.Duration) runstore.Lease {
	t.Helper()
	req := kit.Acquiring("run", "a", 2*harness.TTL)
	req.MaxStall = bound
	return kit.MustAcquire(t, e.Store, req)
}

// noProgressMade fails the case unless err is ErrNoProgress with this bound.
func noProgressMade(t harness.T, bound time.Duration, what string, err error) {
	t.Helper()
	var stalled *runstore.NoProgressError
	if !errors.As(err, &stalled) || !errors.Is(err, runstore.ErrNoProgress) {
		t.Errorf("%s: got error %v, want ErrNoProgress as *NoProgressError", what, err)
		return
	}
	if stalled.MaxStall != bound || stalled.Stalled <= stalled.MaxStall {
		t.Errorf("%s: stalled for %v of %v in the error, want more than %v", what, stalled.Stalled, stalled.MaxStall, bound)
	}
}

func stalledHolder(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := stalling(t, e, e.ShortTTL())
	kit.Expire(t, e) // the bound on stalling passes, not the lease
	e.Advance(t, 10*time.Millisecond)
	before := kit.Dump(t, e.Store, "run")
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		noProgressMade(t, e.ShortTTL(), "a renewal without progress", kit.Renew(t, s, lease, 2*harness.TTL))
	}
	kit.CheckUnchanged(t, "refused renewals", before, kit.Dump(t, e.Store, "run"))
	_, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "b", harness.TTL))
	kit.CheckLeaseHeld(t, "a contender before the expiry", err, lease, 2*harness.TTL)
	e.Append(t, e.Store, lease, "the grant is still current")
}

func stalledTakeover(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "a", e.ShortTTL())
	req.MaxStall = e.ShortTTL()
	lease := kit.MustAcquire(t, e.Store, req)
	kit.Expire(t, e)
	e.Advance(t, 10*time.Millisecond)
	noProgressMade(t, e.ShortTTL(), "a late renewal without progress", kit.Renew(t, e.Store, lease, harness.TTL))
	next := e.Acquire(t, e.Store, "run", "b")
	if h := e.Get(t, "run").Holder; h.MaxStall != 0 || !h.ProgressedAt.Equal(h.GrantedAt) {
		t.Errorf("the successor has the bound %v and progressed at %v; want none, and its grant at %v", h.MaxStall, h.ProgressedAt, h.GrantedAt)
	}
	_, err := e.Store.Commit(t.Context(), kit.Appending(lease, "zombie"))
	kit.CheckFenced(t, "a commit by the holder that stalled", err, lease, e.Get(t, "run"))
	e.Append(t, e.Store, next, "recovered")
}

// progressResumes repeats a step under a lease with twice the bound on a machine so slow that the
// bound has passed once more.
func progressResumes(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	stall := e.ShortTTL()
	lease := stalling(t, e, stall)
	for i, kind := range []string{"event", "record", "deletion", "event with a status"} {
		for {
			e.Advance(t, stall+10*time.Millisecond)
			noProgressMade(t, stall, "a renewal before the "+kind, kit.Renew(t, e.Store, lease, harness.TTL))
			b := runstore.NewBatch("run", lease.Fence())
			switch i {
			case 0:
				b.Append("test", []byte("progress"))
			case 1:
				b.Put("record", []byte("progress"))
			case 2:
				b.Delete("record")
			default:
				status := runstore.Status(5)
				b.Append("test", []byte("progress"))
				b.Status = &status
			}
			done := kit.MustApply(t, e.Store, kind, b)
			err := kit.Renew(t, e.Store, lease, harness.TTL)
			if err == nil {
				break
			}
			if !errors.Is(err, runstore.ErrNoProgress) || e.Now(t).Sub(done.Time) <= stall {
				t.Fatalf("a renewal after the %s: %v", kind, err)
			}
			kit.MustRelease(t, e.Store, lease)
			stall *= 2
			lease = stalling(t, e, stall)
		}
	}
}

// lateProgress repeats a step with twice the bound on a machine so slow that the bound has passed once
// more. The bound is never shorter than the TTL, so a refused renewal shows that the lease has expired.
func lateProgress(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	for _, kind := range []string{"event", "record"} {
		for stall := e.ShortTTL(); ; stall *= 2 {
			req := kit.Acquiring("run", "a", e.ShortTTL())
			req.MaxStall = stall
			lease := kit.MustAcquire(t, e.Store, req)
			e.Advance(t, stall+10*time.Millisecond)
			noProgressMade(t, stall, "a late renewal before the "+kind, kit.Renew(t, e.Store, lease, harness.TTL))
			b := runstore.NewBatch("run", lease.Fence())
			if kind == "event" {
				b.Append("test", []byte("late"))
			} else {
				b.Put("record", []byte("late"))
			}
			done := kit.MustApply(t, e.Store, "the late "+kind, b)
			if at := e.Get(t, "run").Holder.ProgressedAt; !at.Equal(done.Time) {
				t.Errorf("after the late %s: progressed at %v, want %v", kind, at, done.Time)
			}
			err := kit.Renew(t, e.Store, lease, harness.TTL)
			if err != nil && (!errors.Is(err, runstore.ErrNoProgress) || e.Now(t).Sub(done.Time) <= stall) {
				t.Fatalf("a renewal after the late %s: %v", kind, err)
			}
			kit.MustRelease(t, e.Store, lease)
			if err == nil {
				break
			}
		}
	}
}

func noProgress(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	var lease runstore.Lease
	var at time.Time
	stall := e.ShortTTL()
	for ; ; stall *= 2 { // retry with twice the bound if the heartbeat came too late
		lease = stalling(t, e, stall)
		at = e.Get(t, "run").Holder.ProgressedAt
		err := kit.Renew(t, e.Store, lease, harness.TTL)
		if err == nil {
			break
		}
		if !errors.Is(err, runstore.ErrNoProgress) || e.Now(t).Sub(at) <= stall {
			t.Fatalf("a heartbeat in time: %v", err)
		}
		kit.MustRelease(t, e.Store, lease)
	}
	unmoved := func(what string) {
		if got := e.Get(t, "run").Holder.ProgressedAt; !got.Equal(at) {
			t.Errorf("after a %s: progressed at %v, want %v as before", what, got, at)
		}
	}
	unmoved("heartbeat")
	status := runstore.Status(3)
	steps := map[string]func(){
		"refused batch": func() {
			b := kit.Appending(lease, "refused")
			b.Require(runstore.AtSeq(99))
			_, err := e.Store.Commit(t.Context(), b)
			harness.Refused(t, "a batch at another seq", err, runstore.ErrConflict)
		},
		"batch of guards only": func() {
			kit.MustApply(t, e.Store, "a batch of guards only", runstore.NewBatch("run", lease.Fence()))
		},
		"status": func() {
			b := runstore.NewBatch("run", lease.Fence())
			b.Status = &status
			kit.MustApply(t, e.Store, "a status", b)
		},
		"signal": func() {
			b := runstore.NewBatch("run", runstore.Unguarded("a signal"))
			b.Append("signal", nil)
			kit.MustApply(t, e.Store, "a signal", b)
		},
		"claim": func() {
			b := runstore.NewBatch("run", runstore.AtVersion("claim", 0))
			b.Put("claim", nil)
			kit.MustApply(t, e.Store, "a claim by another", b)
		},
	}
	for what, step := range steps {
		step()
		unmoved(what)
	}
	e.Advance(t, stall+10*time.Millisecond)
	noProgressMade(t, stall, "a renewal after all of these", kit.Renew(t, e.Store, lease, harness.TTL))
}

func renewalProgress(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := stalling(t, e, e.ShortTTL())
	kit.Expire(t, e)
	e.Advance(t, 10*time.Millisecond)
	noProgressMade(t, e.ShortTTL(), "a renewal without progress", kit.Renew(t, e.Store, lease, harness.TTL))
	bare := runstore.RenewRequest{Fence: lease.Fence(), TTL: harness.TTL}
	status := runstore.Status(3)
	bare.Writes.Status = &status
	_, err := e.Store.RenewLease(t.Context(), bare)
	noProgressMade(t, e.ShortTTL(), "a renewal with a status", err)
	if got := e.Get(t, "run").Status; got != 0 {
		t.Errorf("the refused renewal set the status %d", got)
	}
	checkpoint := runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL}
	checkpoint.Writes.Put("checkpoint", []byte("one"))
	renewed, err := e.Store.RenewLease(t.Context(), checkpoint)
	if err != nil {
		t.Fatalf("a renewal with a checkpoint: %v", err)
	}
	run := e.Get(t, "run")
	if !run.Holder.ProgressedAt.Equal(renewed.Committed.Time) || !run.Holder.RenewedAt.Equal(renewed.Committed.Time) || run.Holder.TTL != 2*harness.TTL {
		t.Errorf("the run shows %+v, want progress and renewal at %v for %v", run.Holder, renewed.Committed.Time, 2*harness.TTL)
	}
	if !run.ExpiresAt.Equal(renewed.ExpiresAt) || run.ExpiresAt.Sub(lease.ExpiresAt) <= 0 {
		t.Errorf("the run expires at %v, want %v, after %v", run.ExpiresAt, renewed.ExpiresAt, lease.ExpiresAt)
	}
	kit.Equal(t, "version of the checkpoint", kit.Record(t, e.Store, "run", "checkpoint").Version, runstore.Version(1))
}

func unboundedStall(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "a")
	kit.Expire(t, e)
	if err := kit.Renew(t, e.Store, lease, harness.TTL); err != nil {
		t.Errorf("a renewal without progress, and without a bound: %v", err)
	}
	// A bound applies to one grant only.
	kit.MustRelease(t, e.Store, lease)
	kit.MustRelease(t, e.Store, stalling(t, e, e.ShortTTL()))
	next := e.Acquire(t, e.Store, "run", "b")
	kit.Expire(t, e)
	e.Advance(t, 10*time.Millisecond)
	if err := kit.Renew(t, e.Store, next, harness.TTL); err != nil {
		t.Errorf("a renewal without a bound after a grant with one: %v", err)
	}
}

func showsProgress(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	req := kit.Acquiring("run", "a", harness.TTL)
	req.MaxStall = 90 * time.Minute
	granted, err := e.Store.AcquireLease(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	other := e.Reopen(t)
	at := granted.Committed.Time
	check := func(when string, renewed, progressed time.Time, ttl time.Duration) {
		t.Helper()
		run, err := other.GetRun(t.Context(), "run")
		if err != nil {
			t.Fatalf("get: %v", err)
		}
		got := fmt.Sprint(run.Holder.GrantedAt, run.Holder.RenewedAt, run.Holder.ProgressedAt, run.Holder.TTL, run.Holder.MaxStall)
		kit.Equal(t, when, got, fmt.Sprint(at, renewed, progressed, ttl, req.MaxStall))
	}
	check("granted", at, at, harness.TTL)
	e.Advance(t, 10*time.Millisecond)
	first := kit.MustApply(t, e.Store, "event", kit.Appending(granted.Lease, "one"))
	check("an event appended", at, first.Time, harness.TTL)
	e.Advance(t, 10*time.Millisecond)
	renew := runstore.RenewRequest{Fence: granted.Fence(), TTL: 2 * harness.TTL}
	if _, err := e.Store.RenewLease(t.Context(), renew); err != nil {
		t.Fatalf("renew: %v", err)
	}
	renewedAt := e.Get(t, "run").Holder.RenewedAt
	if !renewedAt.After(at) {
		t.Errorf("renewed at %v, want after the grant at %v", renewedAt, at)
	}
	check("renewed", renewedAt, first.Time, 2*harness.TTL)
	if multi, ok := runstore.As[runstore.MultiCommitter](e.Store); ok {
		e.Create(t, "other")
		b := runstore.NewBatch("other", runstore.AtSeq(1))
		b.Append("test", nil)
		done, err := multi.CommitMulti(t.Context(), []runstore.Batch{b, kit.Appending(granted.Lease, "two")})
		if err != nil {
			t.Fatalf("commit of two runs: %v", err)
		}
		check("a commit of two runs", renewedAt, done[1].Time, 2*harness.TTL)
	}
	kit.MustRelease(t, e.Store, granted.Lease)
	kit.Equal(t, "holder of a free lease", e.Get(t, "run").Holder, runstore.Holder{})
}
