package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// wrongClockCases prove that the clock of a process decides nothing: grants, renewals, takeovers,
// scans, stamps and the feed are the same while it is hours ahead, hours behind, or steps in
// between.
func wrongClockCases() []harness.Case {
	skew := []harness.Need{harness.NeedSkew}
	return []harness.Case{
		{Guarantee: "I7", Name: "wrong-clock-steals-no-live-lease", Needs: skew, Run: skewedThief, Doc: `
			A process whose clock is three hours ahead, three behind and then right asks for a live lease, with and
			without writes. Every request is ErrLeaseHeld with the true remaining time, and the run does not change;
			the holder commits and renews. A store that judges expiry by time.Now in the calling process grants the
			lease.`},
		{Guarantee: "I7", Name: "wrong-clock-loses-no-lease-of-its-own", Needs: skew, Run: skewedHolder, Doc: `
			A process whose clock is wrong acquires a lease; then its clock steps by hours. The expiry counts from
			the store clock, the holder commits and renews, others are ErrLeaseHeld, strict or not. A store that
			computes the expiry, or judges a strict lease, by the process's clock refuses a holder that is in time.`},
		{Guarantee: "I7", Name: "wrong-clock-takes-over-what-has-expired", Needs: skew, Run: skewedTakeover, Doc: `
			A process with a wrong clock, and one with a right clock, create runs with short leases; the wrong clock
			steps, and the leases expire on the store clock. Each process takes over the other's lease at the next
			token, and the old holder is ErrFenced. A store that judges expiry by the process's clock refuses a
			takeover for hours.`},
		{Guarantee: "I7", Name: "wrong-clock-stamps-nothing", Needs: skew, Run: skewedStamps, Doc: `
			A process whose clock is hours behind, ahead and then right creates a run, acquires, renews and commits.
			Every time that it returns or stores, of the run, its events, records, queue places and leases, is the
			store clock's. A store that stamps with time.Now of the writing process fails.`},
		{Guarantee: "I7", Name: "wrong-clock-sees-what-is-due", Needs: skew, Run: skewedQueue, Doc: `
			A process whose clock is wrong scans a queue, the runnable index and the index of runs, oldest and newest
			first, and a stale replica where there is one. It finds what is due on the store clock: no timer hours
			early, none missing, and no run whose lease is live. A store that takes the bound of a scan from the
			process's clock fails.`},
		{Guarantee: "I7", Name: "wrong-clock-reads-the-whole-feed", Needs: skew, Run: skewedFeed, Doc: `
			A process whose clock is wrong and a process whose clock is right append events and follow the feed. The
			first gets the same events at the same positions as the second, with times on the store clock. A store
			that ends the feed at what the reading process takes for the present hides new events from a process that
			is behind.`},
	}
}

// The errors of a process's clock, in the order in which a case sets them: hours off and right
// again. A handle is opened under the first. Hours far exceed any TTL of a case, so a result that
// depends on the clock differs visibly.
var (
	aheadFirst = []time.Duration{3 * time.Hour, -3 * time.Hour, 0}
	backFirst  = []time.Duration{-3 * time.Hour, 3 * time.Hour, 0}
)

func skewedThief(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	thief, clock := e.Skewed(t, aheadFirst)
	before := kit.Dump(t, e.Store, "run")
	for who := range clock.Steps(t) {
		what := fmt.Sprintf("acquire by %s, of a lease until %v on the store clock", who, lease.ExpiresAt)
		plain, writing := kit.Acquiring("run", "thief", harness.TTL), kit.Acquiring("run", "thief", harness.TTL)
		writing.Writes.Append("stolen", nil)
		for _, req := range []runstore.AcquireRequest{plain, writing} {
			_, err := thief.AcquireLease(t.Context(), req)
			kit.CheckLeaseHeld(t, fmt.Sprintf("%s, with %d events", what, len(req.Writes.Events)), err, lease, harness.TTL)
		}
	}
	kit.CheckUnchanged(t, "refused acquires", before, kit.Dump(t, e.Store, "run"))
	e.Append(t, e.Store, lease, "still held")
	if err := kit.Renew(t, e.Store, lease, 2*harness.TTL); err != nil {
		t.Errorf("renew: %v", err)
	}
}

// skewedHolder takes strict leases too, because a store refuses the holder of a strict lease as
// soon as it judges the lease to be expired.
func skewedHolder(t harness.T, e *harness.Env) {
	s, clock := e.Skewed(t, backFirst)
	e.Create(t, "run")
	skews := clock.Skews()
	back, ahead, right := skews[0], skews[1], skews[2]
	for _, step := range []struct {
		from, to time.Duration
		strict   bool
	}{{back, ahead, true}, {back, ahead, false}, {ahead, right, true}} {
		who := clock.Set(step.from)
		req := kit.Acquiring("run", "holder", harness.TTL)
		req.Strict = step.strict
		from := earliestCommitTime(t, e, s)
		lease := kit.MustAcquire(t, s, req)
		checkBetween(t, "the expiry of a grant to "+who, lease.ExpiresAt, from.Add(harness.TTL), e.Now(t).Add(harness.TTL))
		clock.WasRead(t)

		who = fmt.Sprintf("%s by now, strict %t", clock.Set(step.to), step.strict)
		e.Advance(t, e.ShortTTL()/2)
		// The handle has not read the store clock since the step, so it may estimate the time by
		// its process's clock.
		from = e.Now(t)
		done, err := s.Commit(t.Context(), kit.Appending(lease, "work"))
		if err != nil {
			t.Errorf("commit by %s: got error %v, want none: the lease lasts until %v and the store clock shows %v", who, err, lease.ExpiresAt, e.Now(t))
		} else {
			checkBetween(t, "a commit by "+who, done.Time, from.Add(-time.Minute), e.Now(t))
		}
		_, err = e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "other", harness.TTL))
		kit.CheckLeaseHeld(t, "acquire against "+who, err, lease, harness.TTL)
		from = earliestCommitTime(t, e, s)
		renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: 2 * harness.TTL})
		if err != nil {
			t.Fatalf("renewal by %s: got error %v, want none: the lease lasts until %v and the store clock shows %v", who, err, lease.ExpiresAt, e.Now(t))
		}
		checkBetween(t, "the expiry of a renewal by "+who, renewed.ExpiresAt, from.Add(2*harness.TTL), e.Now(t).Add(2*harness.TTL))
		if _, err := e.Store.Commit(t.Context(), kit.Appending(lease, "work")); err != nil {
			t.Errorf("commit through a right clock under the lease of %s: got error %v, want none", who, err)
		}
		kit.MustRelease(t, s, lease)
		clock.WasRead(t)
	}
}

func skewedTakeover(t harness.T, e *harness.Env) {
	s, clock := e.Skewed(t, aheadFirst)
	create := func(by runstore.RunStore, id runstore.RunID, what string) runstore.Lease {
		spec := kit.WithLease(id, "holder")
		spec.Lease.TTL = e.ShortTTL()
		from := earliestCommitTime(t, e, by)
		created, err := by.CreateRun(t.Context(), spec)
		if err != nil {
			t.Fatalf("create %q: %v", id, err)
		}
		checkBetween(t, "the expiry of a grant with the creation by "+what, created.Lease.ExpiresAt, from.Add(e.ShortTTL()), e.Now(t).Add(e.ShortTTL()))
		return created.Lease
	}
	takeOver := func(by runstore.RunStore, lease runstore.Lease, what string) {
		taken, err := by.AcquireLease(t.Context(), kit.Acquiring(lease.Run, "contender", harness.TTL))
		if err != nil {
			t.Fatalf("takeover by %s of a lease that ended at %v on the store clock, which shows %v: got error %v, want none",
				what, lease.ExpiresAt, e.Now(t), err)
		}
		if taken.Token != lease.Token+1 {
			t.Errorf("takeover by %s: got token %v, want %v", what, taken.Token, lease.Token+1)
		}
	}
	skews := clock.Skews()
	for i, skew := range skews {
		who := clock.Set(skew)
		wrong := create(s, runstore.RunID(fmt.Sprintf("of-wrong-%d", i)), who)
		clock.WasRead(t)
		right := create(e.Store, runstore.RunID(fmt.Sprintf("of-right-%d", i)), "a process whose clock is right")
		stepped := clock.Set(skews[(i+1)%len(skews)])
		kit.Expire(t, e)
		takeOver(e.Store, wrong, "a process whose clock is right, from "+who)
		takeOver(s, right, stepped)
		kit.CheckFenced(t, "commit after the takeover", commitOnly(t, s, wrong), wrong, e.Get(t, wrong.Run))
		clock.WasRead(t)
	}
}

func skewedStamps(t harness.T, e *harness.Env) {
	s, clock := e.Skewed(t, backFirst)
	n := 0
	for who := range clock.Steps(t) {
		checkCommitTimes(t, e, s, runstore.RunID(fmt.Sprintf("run-%d", n)), "by "+who)
		n++
	}
}

func skewedQueue(t harness.T, e *harness.Env) {
	spec := runstore.RunSpec{ID: "leased", Runnable: runstore.After(0)}
	spec.Writes.Put("due", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	spec.Writes.Put("later", nil, runstore.Place{Index: "queue", At: runstore.After(30 * time.Minute)})
	for _, id := range []runstore.RunID{"leased", "free"} {
		spec.ID = id
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create: %v", err)
		}
	}
	spec = runstore.RunSpec{ID: "later", Runnable: runstore.After(30 * time.Minute)}
	if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	e.Acquire(t, e.Store, "leased", "holder")
	e.Advance(t, 2*clockSlack)
	s, clock := e.Skewed(t, aheadFirst)
	for who := range clock.Steps(t) {
		scan := func(q runstore.IndexQuery) (found []string) {
			for entry, err := range runstore.Entries(t.Context(), s, q) {
				if err != nil {
					t.Fatalf("scan of %q by %s: %v", q.Index, who, err)
				}
				found = append(found, fmt.Sprintf("%s of %s", entry.Record.Key, entry.Run))
			}
			slices.Sort(found)
			return found
		}
		for _, newest := range []bool{false, true} {
			what := fmt.Sprintf("what is %%s to %s (newest first: %t), with the store clock at %v", who, newest, e.Now(t))
			kit.Equal(t, fmt.Sprintf(what, "due"), scan(runstore.IndexQuery{Index: "queue", Newest: newest}), []string{"due of free", "due of leased"})
			kit.Equal(t, fmt.Sprintf(what, "runnable"), scan(runstore.IndexQuery{Index: runstore.IndexRunnable, Newest: newest}), []string{" of free"})
			kit.Equal(t, fmt.Sprintf(what, "a run"), scan(runstore.IndexQuery{Index: runstore.IndexRuns, Newest: newest}), []string{" of free", " of later", " of leased"})
		}
		stale, ok := runstore.As[runstore.StaleReader](s)
		if !ok {
			continue
		}
		// A replica's state of that age holds all of the writes, which are twice the slack old.
		candidates, err := stale.ScanIndexStale(t.Context(), runstore.IndexQuery{Index: "queue", Limit: 10}, time.Millisecond)
		if err != nil {
			t.Fatalf("stale scan by %s: %v", who, err)
		}
		var found []string
		for _, c := range candidates {
			found = append(found, fmt.Sprintf("%s of %s", c.Key, c.Run))
		}
		slices.Sort(found)
		kit.Equal(t, fmt.Sprintf("the candidates that are due to %s, with the store clock at %v", who, e.Now(t)), found, []string{"due of free", "due of leased"})
	}
}

func skewedFeed(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	s, clock := e.Skewed(t, aheadFirst)
	const each = 2
	var right, followed []runstore.FeedEvent // as read by a right clock and by the wrong one
	for who := range clock.Steps(t) {
		from := earliestCommitTime(t, e, s)
		for _, by := range []runstore.RunStore{s, e.Store} {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("signal", nil)
			kit.MustCommit(t, by, b)
		}
		to := e.Now(t)
		want := len(followed) + each
		right = append(right, feedBeyond(t, e, e.Store, right, each, 0, "a process whose clock is right")...)
		followed = append(followed, feedBeyond(t, e, s, followed, each, 300, who)...)
		for i, event := range followed[want-each:] {
			kit.Equal(t, fmt.Sprintf("the seq of event %d as read by %s", want-each+i+1, who), event.Seq, runstore.Seq(want-each+i+1))
			checkBetween(t, fmt.Sprintf("the time of event %d in the feed as read by %s", event.Seq, who), event.Time, from, to)
		}
	}
	kit.Equal(t, "the feed as followed with a wrong clock, against a right one's", followed, right)
}

// feedBeyond returns the n events of the feed that follow those in read. The feed may lag, but not
// once another handle has read the events: enough then bounds how many reads may find too few of
// them. 0 means no bound.
func feedBeyond(t harness.T, e *harness.Env, s runstore.RunStore, read []runstore.FeedEvent, n, enough int, who string) (more []runstore.FeedEvent) {
	t.Helper()
	after := runstore.Position(0)
	if len(read) > 0 {
		after = read[len(read)-1].Position
	}
	reads := 0
	e.Await(t, harness.CaseTimeout, func() bool {
		more = kit.MustCollect(t, "the feed as read by "+who, kit.FeedAfter(t.Context(), s, after, runstore.MaxPage))
		reads++
		return len(more) >= n || reads == enough
	})
	if len(more) != n {
		t.Fatalf("%s reads %d events behind position %d in %d reads, want the %d that were written; the store clock shows %v",
			who, len(more), after, reads, n, e.Now(t))
	}
	return more
}

// wrongClockHint returns a hint for a time that is off by about as much as a case sets a process's
// clock wrong: the time then comes from that clock.
func wrongClockHint(off time.Duration) string {
	for _, skew := range aheadFirst {
		if skew > 0 && off.Abs() > skew-time.Minute && off.Abs() < 2*skew+time.Minute {
			return ", as much as a process's clock was set wrong: it comes from that clock, not from the store's"
		}
	}
	return ""
}
