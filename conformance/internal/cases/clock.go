package cases

import (
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Clocks returns the cases that prove I7: expiry is judged by the store clock alone.
func Clocks() []harness.Case {
	return append(wrongClockCases(), []harness.Case{
		{Guarantee: "I7", Name: "a-slow-network-shifts-no-time", Needs: []harness.Need{harness.NeedNetwork}, Run: slowStamps, Doc: `
			A handle on a network that always had 20 ms of delay creates a run, acquires, renews and commits. Every
			time that it returns or stores lies between readings of the store clock around the call, to within the time
			that a reading takes. A store that keeps using an old reading of the engine's clock, or adds the delay,
			fails.`},
		{Guarantee: "I7", Name: "expiry-is-the-store-clock-plus-ttl", Run: expiryIsNowPlusTTL, Doc: `
			A handle acquires, renews and creates with TTLs from the shortest to the longest. Each expiry is the TTL
			after a time between two readings of the store clock around the call, in UTC and truncated to the store's
			precision. A store that counts from another clock, rounds, or counts a renewal from the old expiry fails.`},
		{Guarantee: "I7", Name: "lease-expires-when-the-store-clock-says-so", Run: storeClockExpires, Doc: `
			A contender asks for a lease halfway through its TTL and again when the store clock has passed the
			expiry. The first request is ErrLeaseHeld, the second gets the next token. A store that frees the lease
			early, by the TTL that the contender asks for, or that never frees it, fails.`},
		{Guarantee: "I7", Name: "store-clock-never-goes-back", Run: clockNeverBack, Doc: `
			Four handles read the store clock at once. A reading that begins after another has ended is never lower,
			and each is in UTC and truncated to the store's precision. Where the case can move the clock, an hour is
			an hour. A store whose handles estimate the clock each by itself shows time running backwards.`},
		{Guarantee: "I7", Name: "times-are-those-of-the-commit", Run: timesOfCommit, Doc: `
			A holder commits five batches with two events and a record each. The commit's time lies between readings
			of the store clock around it; its events and the record's update carry that very time, the record's
			creation and the run's stay, and times never decrease. A store that stamps with the run's last write, or
			with the time of sending, fails.`},
		{Guarantee: "I7", Name: "relative-times-count-from-the-commit", Run: relativeTimes, Doc: `
			A batch places a record and sets the runnable time after 0, a microsecond, a minute and a year. Each is
			exactly the commit's time plus that, and a scan up to that very time finds the entry. An absolute time is
			truncated and kept in UTC; Never clears it. A store that counts from the caller's clock, or rounds,
			fails.`},
	}...)
}

// clockSlack, 5 ms, is how far a time that an engine stamps may lie outside the readings of its own
// clock before and after: an engine may keep milliseconds, or take the time at the statement
// instead of the commit.
const clockSlack = 5 * time.Millisecond

// checkBetween fails the case unless at lies between two readings of the store clock, give or take
// clockSlack, and is in UTC and truncated to runstore.TimePrecision.
func checkBetween(t harness.T, what string, at, from, to time.Time) {
	t.Helper()
	switch {
	case at.Before(from.Add(-clockSlack)):
		t.Errorf("%s is %v, want a time between the store clock's readings %v and %v: it is %v too early%s",
			what, at, from, to, from.Sub(at), wrongClockHint(at.Sub(from)))
	case at.After(to.Add(clockSlack)):
		t.Errorf("%s is %v, want a time between the store clock's readings %v and %v: it is %v too late%s",
			what, at, from, to, at.Sub(to), wrongClockHint(at.Sub(to)))
	}
	if at.Location() != time.UTC || !at.Equal(at.Truncate(runstore.TimePrecision)) {
		t.Errorf("%s is %v, want UTC truncated to %v", what, at, runstore.TimePrecision)
	}
}

func expiryIsNowPlusTTL(t harness.T, e *harness.Env) {
	for i, ttl := range []time.Duration{runstore.MinTTL, time.Second, 1234567 * time.Microsecond, harness.TTL, runstore.MaxTTL} {
		id := runstore.RunID(fmt.Sprintf("run-%d", i))
		e.Create(t, id)
		from := e.Now(t)
		lease := kit.MustAcquire(t, e.Store, kit.Acquiring(id, "holder", ttl))
		checkBetween(t, fmt.Sprintf("the expiry of a grant for %v", ttl), lease.ExpiresAt, from.Add(ttl), e.Now(t).Add(ttl))
		if lease.TTL != ttl {
			t.Errorf("a grant for %v tells the TTL %v", ttl, lease.TTL)
		}
		longer := min(2*ttl, runstore.MaxTTL)
		e.Advance(t, 2*clockSlack)
		from = e.Now(t)
		renewed, err := e.Store.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: longer})
		if err != nil {
			t.Fatalf("renew for %v: %v", longer, err)
		}
		checkBetween(t, fmt.Sprintf("the expiry of a renewal for %v", longer), renewed.ExpiresAt, from.Add(longer), e.Now(t).Add(longer))

		spec := kit.WithLease(id+"-created", "holder")
		spec.Lease.TTL = ttl
		from = e.Now(t)
		created, err := e.Store.CreateRun(t.Context(), spec)
		if err != nil {
			t.Fatalf("create: %v", err)
		}
		checkBetween(t, fmt.Sprintf("the expiry of a creation with a grant for %v", ttl), created.Lease.ExpiresAt, from.Add(ttl), e.Now(t).Add(ttl))
	}
}

func storeClockExpires(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	ttl := 4 * e.ShortTTL()
	lease := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "holder", ttl))
	latest := e.Now(t).Add(ttl) // the grant was made before this reading
	e.Advance(t, ttl/2)
	_, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "contender", harness.TTL))
	early := err == nil // a success is allowed only after the expiry, on a slow engine
	switch {
	case !early:
		kit.CheckLeaseHeld(t, "acquire before the expiry", err, lease, ttl)
	case e.Now(t).Before(lease.ExpiresAt):
		t.Fatalf("the lease was taken over before it expired at %v", lease.ExpiresAt)
	}
	e.Await(t, ttl+harness.CaseTimeout, func() bool {
		if e.Now(t).Before(latest) && e.AdvanceClock != nil {
			e.AdvanceClock(ttl)
		}
		return !e.Now(t).Before(latest)
	})
	if !early {
		taken := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "contender", harness.TTL))
		if taken.Token != lease.Token+1 {
			t.Errorf("takeover got token %v, want %v", taken.Token, lease.Token+1)
		}
	}
}

func clockNeverBack(t harness.T, e *harness.Env) {
	const readers = 4
	readings := e.Scaled(t, "readings of each reader", 40, 200)
	handles := kit.OpenHandles(t, e, readers)
	var mu sync.Mutex
	var highest time.Time // the highest reading that has ended
	kit.Contend(readers, func(i int) {
		for range readings {
			mu.Lock()
			before := highest
			mu.Unlock()
			now, err := handles[i].Now(t.Context())
			if err != nil {
				t.Errorf("now: %v", err)
				return
			}
			if now.Before(before) {
				t.Errorf("the store clock showed %v after it had shown %v", now, before)
				return
			}
			if now.Location() != time.UTC || !now.Equal(now.Truncate(runstore.TimePrecision)) {
				t.Errorf("the store clock shows %v, want UTC truncated to %v", now, runstore.TimePrecision)
				return
			}
			mu.Lock()
			if now.After(highest) {
				highest = now
			}
			mu.Unlock()
		}
	})
	if e.AdvanceClock == nil {
		return
	}
	e.Advance(t, time.Hour)
	if now := e.Now(t); now.Before(highest.Add(time.Hour)) {
		t.Errorf("moved by an hour the store clock shows %v, it had shown %v before", now, highest)
	}
}

func timesOfCommit(t harness.T, e *harness.Env) {
	from := e.Now(t)
	run := e.Create(t, "run")
	checkBetween(t, "the creation", run.CreatedAt, from, e.Now(t))
	lease := e.Acquire(t, e.Store, "run", "holder")
	var last time.Time
	var creation runstore.Stamp
	for i := range 5 {
		e.Advance(t, 2*clockSlack)
		b := kit.Appending(lease, "work")
		b.Append("test", []byte("more"))
		b.Put("record", nil)
		from = e.Now(t)
		done := kit.MustApply(t, e.Store, "commit", b)
		to := e.Now(t)
		checkBetween(t, "the commit", done.Time, from, to)
		events := kit.Journal(t, e.Store, "run")
		for _, event := range events[2*i:] {
			if !event.Time.Equal(done.Time) {
				t.Errorf("event %d has time %v, its commit %v", event.Seq, event.Time, done.Time)
			}
			if event.Time.Before(last) {
				t.Errorf("event %d has time %v, one before it %v", event.Seq, event.Time, last)
			}
		}
		last = done.Time
		records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10})
		if err != nil || len(records) != 1 {
			t.Fatalf("records: %d, error %v", len(records), err)
		}
		if i == 0 {
			creation = records[0].Created
		}
		if r := records[0]; !r.Updated.Time.Equal(done.Time) || !r.Created.Time.Equal(creation.Time) || !creation.Time.Equal(events[0].Time) {
			t.Errorf("the record was created at %v and updated at %v, want %v and %v", r.Created.Time, r.Updated.Time, events[0].Time, done.Time)
		}
	}
	if again := e.Get(t, "run"); !again.CreatedAt.Equal(run.CreatedAt) {
		t.Errorf("the creation moved from %v to %v", run.CreatedAt, again.CreatedAt)
	}
}

func relativeTimes(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "holder")
	for i, d := range []time.Duration{0, time.Microsecond, time.Minute, 365 * 24 * time.Hour} {
		b := kit.Appending(lease, "work")
		b.Runnable = runstore.After(d)
		index := runstore.IndexName(fmt.Sprintf("queue-%d", i))
		b.Put("record", nil, runstore.Place{Index: index, At: runstore.After(d)})
		done := kit.MustApply(t, e.Store, "commit", b)
		want := done.Time.Add(d)
		if got := e.Get(t, "run").RunnableAt; !got.Equal(want) {
			t.Errorf("runnable %v after the commit: got %v, want %v", d, got, want)
		}
		entries := 0
		for entry, err := range runstore.Entries(t.Context(), e.Store, runstore.IndexQuery{Index: index, Until: want}) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			entries++
			if !entry.At.Equal(want) {
				t.Errorf("placed %v after the commit: got %v, want %v", d, entry.At, want)
			}
		}
		if entries != 1 {
			t.Errorf("%d entries up to the very time, want 1", entries)
		}
	}
	absolute := e.Now(t).Add(time.Hour).Add(123 * time.Nanosecond)
	b := kit.Appending(lease, "work")
	b.Runnable = runstore.At(absolute.In(time.FixedZone("elsewhere", 3600)))
	kit.MustApply(t, e.Store, "commit", b)
	if got, want := e.Get(t, "run").RunnableAt, absolute.Truncate(runstore.TimePrecision); !got.Equal(want) {
		t.Errorf("runnable at %v: got %v, want %v", absolute, got, want)
	}
	b = kit.Appending(lease, "work")
	b.Runnable = runstore.Never()
	kit.MustApply(t, e.Store, "commit", b)
	if got := e.Get(t, "run").RunnableAt; !got.IsZero() {
		t.Errorf("runnable never: got %v, want the zero time", got)
	}
}
