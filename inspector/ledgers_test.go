package inspector

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// begin begins a run of Tape.
func begin(b *bench, tapes *tape.Tape, key tape.RunKey, owner string) runstore.Fence {
	b.Helper()
	begun, err := tapes.BeginRun(b.Context(), tape.BeginRunRequest{Key: key, Owner: owner, TTL: time.Minute, Identity: tape.Identity{Tenant: "t-" + key.User}})
	if err != nil {
		b.Fatal(err)
	}
	return begun.Lease.Fence()
}

// Each filter selects the runs that it says, alone and with others.
func TestFilters(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	tapes := tape.New(b.store, nil)
	names := map[string]string{} // by id
	var times []time.Time
	for i, user := range []string{"ada", "bob", "ada"} {
		key := tape.RunKey{App: fmt.Sprint("app-", i), User: user, Session: "s", Invocation: fmt.Sprint(i)}
		fence := begin(b, tapes, key, "agent")
		names[string(key.ID())] = fmt.Sprint(i)
		if i == 0 {
			if _, err := tapes.EndRun(t.Context(), tape.EndRunRequest{Run: key.ID(), Status: tape.RunFailed, Fence: fence}); err != nil {
				t.Fatal(err)
			}
		}
		head, err := b.store.GetRun(t.Context(), key.ID())
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, head.CreatedAt)
		b.engine.Advance(50 * time.Second) // the lease of run 1 expires
	}
	b.create(runstore.RunSpec{ID: "plain", Status: 77})
	names["plain"] = "plain"
	for _, c := range []struct {
		query []string
		want  string
	}{
		{nil, "plain 2 1 0"},
		{[]string{"prefix", "pl"}, "plain"},
		{[]string{"status", "failed"}, "0"},
		{[]string{"status", "running"}, "2 1"},
		{[]string{"status", "77"}, "plain"},
		{[]string{"lease", "live"}, "2"},
		{[]string{"lease", "expired"}, "1"},
		{[]string{"lease", "held"}, "2 1"},
		{[]string{"lease", "free"}, "plain 0"},
		{[]string{"user", "ada"}, "2 0"},
		{[]string{"app", "app-1"}, "1"},
		{[]string{"session", "s"}, "2 1 0"},
		{[]string{"tenant", "t-bob"}, "1"},
		{[]string{"user", "ada", "lease", "live"}, "2"},
		{[]string{"user", "ad"}, ""},
		{[]string{"from", times[1].Format(time.RFC3339Nano)}, "plain 2 1"},
		{[]string{"until", times[1].Format(time.RFC3339Nano)}, "1 0"},
		{[]string{"from", times[1].Format(time.RFC3339Nano), "until", times[1].Format(time.RFC3339Nano)}, "1"},
	} {
		page := read[runsView](b, "runs", c.query...)
		var got []string
		for _, run := range page.Runs {
			got = append(got, names[run.ID])
		}
		if strings.Join(got, " ") != c.want || page.Cursor != "" {
			t.Errorf("%q: got %q, want %q", c.query, got, c.want)
		}
	}
}

// A page of a search ends with its last row, wherever that is in the page of the store.
func TestFilterPages(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for i := range 20 {
		b.create(runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("r", i)), Status: runstore.Status(i % 3)})
	}
	var got []string
	for cursor, more := "", true; more; more = cursor != "" {
		page := read[runsView](b, "runs", "status", "1", "limit", "2", "cursor", cursor)
		if len(page.Runs) > 2 {
			t.Errorf("a page of 2 has %d runs", len(page.Runs))
		}
		for _, run := range page.Runs {
			got = append(got, run.ID)
		}
		cursor = page.Cursor
	}
	if want := []string{"r19", "r16", "r13", "r10", "r7", "r4", "r1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The ledgers of a run: each kind of row, what is stuck in it, and its whole bodies.
func TestLedgers(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	tapes := tape.New(b.store, nil)
	key := tape.RunKey{App: "app", User: "ada", Session: "s", Invocation: "i"}
	id := key.ID()
	fence := begin(b, tapes, key, "agent")
	long := `{"prompt":"` + strings.Repeat("x", 5000) + `"}`
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(tapes.RecordDecision(t.Context(), id, tape.Decision{Model: "m", Request: long}, fence))
	check(tapes.SetBudget(t.Context(), tape.BudgetCaps{Run: id, USD: 1, Fence: fence}))
	check(tapes.ChargeBudget(t.Context(), tape.BudgetCharge{Run: id, USD: 2, Fence: fence}))
	check(tapes.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: id, CustomKey: "mail", Tool: "smtp", Mode: tape.Outbox, Fence: fence}))
	check(tapes.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: id, CustomKey: "pay", Tool: "card", Fence: fence}))
	check(tapes.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: id, Key: "pay", Status: tape.EffectUnknown, Error: `"reset"`, Fence: fence}))
	duty, err := tapes.RegisterCompensation(t.Context(), tape.Compensation{Run: id, EffectKey: "pay", Kind: "refund", MaxAttempts: 1, Fence: fence})
	check(duty, err)
	check(tapes.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: id, Seq: duty.Seq, Error: "503", Fence: fence}))
	now, err := b.store.Now(t.Context())
	check(now, err)
	check(tapes.SetTimer(t.Context(), tape.Timer{Run: id, ID: "wake", Kind: "k", FireAtMS: now.UnixMilli()}, fence))
	check(tapes.SendSignal(t.Context(), tape.Signal{Run: id, Gate: "approve", Resolution: `"yes"`}))
	for _, q := range read[struct{ Queues []queueView }](b, "queues").Queues {
		if stuck := q.Index == "effect.unknown" || q.Index == "obligation.stuck"; stuck != (q.Level == levelBad) || !stuck && q.Level != "" {
			t.Errorf("the queue %s is %q at once", q.Index, q.Level)
		}
	}
	b.engine.Advance(lateAfter + time.Second)

	s := read[summaryView](b, "summary", "run", string(id))
	var counts, problems []string
	for _, c := range s.Counts {
		counts = append(counts, strings.TrimSpace(fmt.Sprint(c.Ledger, " ", c.State, " ", c.Count)))
	}
	for _, p := range s.Problems {
		problems = append(problems, p.Level+" "+p.What)
	}
	slices.Sort(counts)
	slices.Sort(problems)
	if want := []string{"budget used up 1", "decision  1", "effect pending 1", "effect unknown 1", "gate delivered 1", "obligation stuck 1", "other  3", "timer due 1"}; !slices.Equal(counts, want) {
		t.Errorf("the counts are %q, want %q", counts, want)
	}
	if want := []string{"bad effect pay", "bad obligation pay", "warn budget budget", "warn effect mail", "warn timer wake"}; !slices.Equal(problems, want) {
		t.Errorf("the problems are %q, want %q", problems, want)
	}

	type list struct{ Records []recordView }
	decision := read[list](b, "records", "run", string(id), "prefix", "decision/").Records[0]
	if body := decision.Row.Bodies[0]; body.Part != "request" || body.Bytes != len(long) || !body.Cut {
		t.Errorf("the decision: %+v", decision.Row)
	}
	if status, body := b.get("value", "run", string(id), "record", decision.Ref, "part", "request"); status != 200 || body != long {
		t.Errorf("its request: status %d, %d bytes", status, len(body))
	}
	if status, body := b.get("value", "run", string(id), "record", decision.Ref, "part", "answer"); status != 400 || !strings.Contains(body, "part: ") {
		t.Errorf("another part: status %d, %s", status, body)
	}

	run := read[runView](b, "run", "run", string(id))
	if run.Run.Status != "running" || run.Run.Tape.Tenant != "t-ada" || run.Last.Kind != "obligation" {
		t.Errorf("the head: %+v", run)
	}
	queues := read[struct{ Queues []queueView }](b, "queues").Queues
	var due []string
	for _, q := range queues {
		if q.Due > 0 {
			due = append(due, fmt.Sprint(q.Index, " ", q.Due, " ", q.Level))
		}
	}
	if want := []string{"effect.unknown 1 bad", "obligation.stuck 1 bad", "effect.dispatch 1 warn", "timer.due 1 warn", "effect.pending 1 "}; !slices.Equal(due, want) {
		t.Errorf("the queues are %q, want %q", due, want)
	}
	queue := read[struct{ Entries []entryView }](b, "queue", "index", "effect.unknown")
	if len(queue.Entries) != 1 || queue.Entries[0].Head.ID != string(id) || queue.Entries[0].Record.Row.Name != "pay" || queue.Entries[0].Head.Lease.Owner != "agent" {
		t.Errorf("the queue: %+v", queue)
	}
	b.engine.Advance(time.Hour)
	if run := read[runView](b, "run", "run", string(id)); run.Run.Lease.State != stateExpired || len(run.Problems) != 1 || run.Problems[0].What != "lease" {
		t.Errorf("an hour later: %+v", run)
	}
	if q := read[struct{ Queues []queueView }](b, "queues").Queues[0]; q.Index != "runnable" || q.Due != 1 || q.Level != levelWarn {
		t.Errorf("the run without a driver: %+v", q)
	}
}

// A queue pages through its entries in order, due or all.
func TestQueuePages(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	now, err := b.store.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		spec := runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("r", i))}
		spec.Writes.Put("job", fmt.Append(nil, i), runstore.Place{Index: "jobs", At: runstore.At(now.Add(time.Duration(i-15) * time.Minute))})
		b.create(spec)
	}
	type page struct {
		Entries []entryView
		Cursor  string
	}
	for all, want := range map[string]int{"no": 16, "yes": 25} {
		n := 0
		for cursor, more := "", true; more; more = cursor != "" {
			p := read[page](b, "queue", "index", "jobs", "all", all, "limit", "7", "cursor", cursor)
			for _, e := range p.Entries {
				if e.Head.ID != fmt.Sprint("r", n) || e.Record.Key != "job" {
					t.Errorf("entry %d: %+v", n, e)
				}
				n++
			}
			cursor = p.Cursor
		}
		if n != want {
			t.Errorf("all %s: %d entries, want %d", all, n, want)
		}
	}
}

// Terms, across pages: the owner of each token, what was written under it, and how the term ended.
func TestTerms(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.create(runstore.RunSpec{ID: "r"})
	term := func(owner runstore.Owner, events int) {
		granted, err := b.store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "r", Preempt: "a test", LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		for events > 0 {
			batch := runstore.NewBatch("r", granted.Fence())
			for range min(events, runstore.MaxEvents) {
				batch.Append("k", nil)
			}
			events -= runstore.MaxEvents
			b.commit(batch)
		}
	}
	term("ada", 300)
	term("bob", 1500)
	if _, err := lease.Break(t.Context(), b.store, lease.BreakRequest{Run: "r", Token: 2, Operator: "carol", Reason: "it loops"}); err != nil {
		t.Fatal(err)
	}
	term("dan", 10)
	term("kim", 0)
	term("eve", 0)
	var got []string
	for cursor, more := "", true; more; more = cursor != "" {
		page := read[termsView](b, "terms", "run", "r", "cursor", cursor)
		for _, v := range page.Terms {
			got = append(got, fmt.Sprintf("%d %s %d #%d-%d %s", v.Token, v.Owner, v.Events, v.FirstSeq, v.LastSeq, v.End))
		}
		if page.Looked > maxTermEvents {
			t.Errorf("a page looked at %d events", page.Looked)
		}
		cursor = page.Cursor
	}
	want := []string{
		"6 eve 0 #0-0 current",
		"5 kim 0 #0-0 preempted: a test",
		"4 dan 10 #1802-1811 preempted: a test",
		"3 carol 1 #1801-1801 revoked",
		"2 bob 989 #812-1800 broken by carol: it loops",
		"2 bob 511 #301-811 preempted: it loops", // the page before says who broke it
		"1 ada 300 #1-300 preempted: a test",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// unmoved is a store of which no scan moves an entry, as a store that is open for reads only: an entry
// of the index of runnable runs has the time of the grant as first granted.
type unmoved struct {
	runstore.RunStore
}

func (s unmoved) Unwrap() runstore.RunStore { return s.RunStore }

func (s unmoved) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	entries, err := s.RunStore.ScanIndex(ctx, q)
	for i, e := range entries {
		if h := e.Head.Holder; q.Index == runstore.IndexRunnable && h.Token != 0 {
			entries[i].At = h.GrantedAt.Add(h.TTL)
		}
	}
	return entries, err
}

// A run without a driver waits since the end of its last lease: not since it first wanted a driver, and
// not since its lease would have expired without a renewal.
func TestWithoutADriverSince(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.handler = New(unmoved{b.store}, nil)
		for _, id := range []runstore.RunID{"expires", "broken"} {
			held := b.create(runstore.RunSpec{ID: id, Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "o", TTL: time.Minute}})
			for range 10 {
				time.Sleep(50 * time.Second)
				if _, err := b.store.RenewLease(t.Context(), runstore.RenewRequest{Fence: held.Fence(), TTL: time.Minute}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := lease.Break(t.Context(), b.store, lease.BreakRequest{Run: "broken", Whoever: true, Operator: "ada", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		idle := b.create(runstore.RunSpec{ID: "idle", Lease: &runstore.LeaseSpec{Owner: "o", TTL: runstore.MinTTL}})
		release := runstore.NewBatch("idle", idle.Fence())
		release.Release = true
		b.commit(release)
		broken := time.Now()
		expired := broken.Add(-500*time.Second + time.Minute)
		check := func(since, oldest time.Time, level string) {
			t.Helper()
			for _, e := range read[struct{ Entries []entryView }](b, "queue", "index", string(runstore.IndexRunnable)).Entries {
				want := map[string]time.Time{"expires": expired, "broken": since}[e.Head.ID]
				if !e.At.Equal(want) {
					t.Errorf("the entry of %s is at %v, want %v", e.Head.ID, e.At, want)
				}
			}
			if q := read[struct{ Queues []queueView }](b, "queues").Queues[0]; !q.Oldest.Equal(oldest) || q.Level != level {
				t.Errorf("the queue: %+v, want the oldest %v and the level %q", q, oldest, level)
			}
		}
		check(broken, expired, levelWarn) // the lease of the break has not reached its expiry
		if v := read[runView](b, "run", "run", "broken"); len(v.Problems) != 0 {
			t.Errorf("the run was broken just now: %+v", v.Problems)
		}
		if _, err := b.store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "expires", LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: 30 * time.Minute}}); err != nil {
			t.Fatal(err)
		}
		check(broken, broken, "")
		ended := broken.Add(runstore.MinTTL)
		time.Sleep(runstore.MinTTL + lateAfter)
		check(ended, ended, "")
		time.Sleep(time.Second)
		check(ended, ended, levelWarn)
		v := read[runView](b, "run", "run", "broken")
		if len(v.Problems) != 1 || v.Problems[0].What != "run" || !v.Problems[0].Since.Equal(ended) {
			t.Errorf("the run has no driver since %v: %+v", ended, v.Problems)
		}
		if v := read[runView](b, "run", "run", "idle"); len(v.Problems) != 0 {
			t.Errorf("a run that wants no driver: %+v", v.Problems)
		}
	})
}

// termless is a store that does not list terms.
type termless struct{ runstore.RunStore }

// TestReleasedLongBeforeTheExpiry checks that a run whose lease was released waits since the release, also
// before the expiry that the lease had, and since its runnable time where the store lists no terms.
func TestReleasedLongBeforeTheExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		runnable := time.Now()
		held := b.create(runstore.RunSpec{ID: "run", Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "o", TTL: 30 * time.Minute}})
		time.Sleep(10 * time.Minute)
		release := runstore.NewBatch("run", held.Fence())
		release.Release = true
		b.commit(release)
		released := time.Now()
		time.Sleep(lateAfter + time.Second)
		for _, since := range []time.Time{released, runnable} {
			if since.Equal(runnable) {
				b.handler = New(termless{b.store}, nil)
			}
			v := read[runView](b, "run", "run", "run")
			if len(v.Problems) != 1 || v.Problems[0].What != "run" || !v.Problems[0].Since.Equal(since) {
				t.Errorf("the run has no driver since %v: %+v", since, v.Problems)
			}
			if q := read[struct{ Queues []queueView }](b, "queues").Queues[0]; !q.Oldest.Equal(since) || q.Level != levelWarn {
				t.Errorf("the queue: %+v, want the oldest %v and a warning", q, since)
			}
		}
	})
}

// An obligation whose worker crashed needs attention as soon as its claim has been over for lateAfter.
func TestObligationOfACrashedWorker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for over, want := range map[time.Duration]string{-time.Minute: "", lateAfter: "", lateAfter + time.Second: levelWarn} {
		o := tape.Obligation{Status: tape.ObligationCommitted, ClaimedBy: "w", ClaimExpires: now.Add(-over), NextAttempt: now.Add(-time.Hour)}
		if v := viewRow(o, now); v.Level != want {
			t.Errorf("a claim that is over for %v: level %q, want %q", over, v.Level, want)
		}
	}
}
