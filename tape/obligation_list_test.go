package tape_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func keysOf(obligations []tape.Obligation) string {
	keys := make([]string, 0, len(obligations))
	for _, o := range obligations {
		keys = append(keys, o.EffectKey)
	}
	return fmt.Sprint(keys)
}

func TestListObligations(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r, other := begin(t, tp, "i"), begin(t, tp, "j")
	register(t, tp, other.ID, "x", "K", 0)
	register(t, tp, r.ID, "pending", "K", 0)
	claim(t, tp, register(t, tp, r.ID, "committed", "K", 0), "c", time.Minute)
	resolved(t, tp, register(t, tp, r.ID, "compensated", "K", 0), tape.ObligationCompensated)
	attempted(t, tp, register(t, tp, r.ID, "stuck", "K", 0), time.Time{})
	for _, c := range []struct {
		q    tape.ObligationQuery
		want string
	}{
		{tape.ObligationQuery{}, "[stuck compensated committed pending]"},
		{tape.ObligationQuery{Unresolved: true}, "[committed pending]"},
		{tape.ObligationQuery{Status: tape.ObligationPending}, "[pending]"},
		{tape.ObligationQuery{Status: tape.ObligationStuck, Unresolved: true}, "[stuck]"},
		{tape.ObligationQuery{Status: tape.ObligationCompensated}, "[compensated]"},
		{tape.ObligationQuery{Status: 77}, "[]"},
		{tape.ObligationQuery{Status: -1}, "[stuck compensated committed pending]"},
		{tape.ObligationQuery{Run: "no-such-run"}, "[]"},
	} {
		if c.q.Run == "" {
			c.q.Run = r.ID
		}
		got, err := tp.ListObligations(t.Context(), c.q)
		if err != nil || keysOf(got) != c.want {
			t.Errorf("ListObligations(%+v) = %s, %v, want %s", c.q, keysOf(got), err, c.want)
		}
	}
}

// Of what does not fit into an answer the newest are returned, without a gap.
func TestListObligationsKeepsTheNewestThatFit(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	const n = 60
	for i := range n {
		payload := strings.Repeat("x", 300_000)
		if i < n/2 {
			payload = "" // small ones below the floor would fit, and must not be returned
		}
		if _, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: r.ID, EffectKey: fmt.Sprint(i), Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: r.ID})
	if err != nil || len(got) != (4<<20)/300_300 {
		t.Fatalf("%d obligations, %v, want %d", len(got), err, (4<<20)/300_300)
	}
	for i, o := range got {
		if o.EffectKey != fmt.Sprint(n-1-i) {
			t.Errorf("place %d has obligation %s, want %d", i, o.EffectKey, n-1-i)
		}
	}
	for _, q := range []tape.ObligationQuery{{Unresolved: true}, {Status: tape.ObligationPending}} {
		q.Run = r.ID
		var large *runstore.InputError
		if got, err := tp.ListObligations(t.Context(), q); !errors.Is(err, runstore.ErrTooLarge) || !errors.As(err, &large) || large.Field != "run_id" {
			t.Errorf("ListObligations(%+v) = %d obligations, %v, want ErrTooLarge", q, len(got), err)
		}
	}
}

func TestListUnresolvedObligations(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	at := now(t, store).Truncate(time.Millisecond).Add(time.Hour)
	put := func(run runstore.RunID, key string) tape.Obligation {
		t.Helper()
		store.Advance(10 * time.Millisecond)
		return register(t, tp, run, key, "K", 0)
	}
	put(a.ID, "p1")
	claim(t, tp, put(b.ID, "c1"), "c", time.Minute)            // expires before at
	claim(t, tp, put(a.ID, "c2"), "c", 2*time.Hour)            // and this one later
	attempted(t, tp, put(b.ID, "p2"), at)                      // due at at
	attempted(t, tp, put(b.ID, "p3"), at.Add(time.Nanosecond)) // in the same microsecond
	attempted(t, tp, put(b.ID, "p4"), at.Add(time.Millisecond))
	attempted(t, tp, put(a.ID, "s1"), time.Time{})
	resolved(t, tp, put(b.ID, "s2"), tape.ObligationStuck)
	resolved(t, tp, put(a.ID, "done"), tape.ObligationCompensated)
	put(a.ID, "p5")
	for _, c := range []struct {
		name string
		q    tape.UnresolvedQuery
		want string
	}{
		{"store clock", tape.UnresolvedQuery{}, "[p1 p5]"},
		{"at", tape.UnresolvedQuery{Now: at}, "[p1 c1 p5 p2 p3]"},
		{"before at", tape.UnresolvedQuery{Now: at.Add(-time.Millisecond)}, "[p1 c1 p5]"},
		{"pending", tape.UnresolvedQuery{Now: at, Pending: true}, "[p1 c1 p5 p2 p3]"},
		{"expired", tape.UnresolvedQuery{Now: at, CommittedExpired: true}, "[c1]"},
		{"pending and expired", tape.UnresolvedQuery{Now: at, Pending: true, CommittedExpired: true}, "[p1 c1 p5 p2 p3]"},
		{"stuck", tape.UnresolvedQuery{Now: at, Stuck: true}, "[s1 s2]"},
		{"stuck and expired", tape.UnresolvedQuery{Now: at, Stuck: true, CommittedExpired: true}, "[s1 c1 s2]"},
		{"all", tape.UnresolvedQuery{Now: at, Stuck: true, Pending: true, CommittedExpired: true}, "[s1 p1 c1 s2 p5 p2 p3]"},
		{"limit", tape.UnresolvedQuery{Now: at, Limit: 2}, "[p1 p5]"},
		{"before all times", tape.UnresolvedQuery{Now: time.UnixMilli(-5), Pending: true, Stuck: true}, "[s1 s2]"},
		{"after all times", tape.UnresolvedQuery{Now: time.UnixMilli(1 << 62)}, "[p1 c1 c2 p5 p2 p3 p4]"},
	} {
		got, err := tp.ListUnresolvedObligations(t.Context(), c.q)
		if err != nil || keysOf(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, keysOf(got), err, c.want)
		}
	}
	store.Advance(90 * time.Minute)
	got, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{})
	if want := "[p1 c1 p5 p2 p3 p4]"; err != nil || keysOf(got) != want {
		t.Errorf("later: %s, %v, want %s", keysOf(got), err, want)
	}
}

// One row that cannot be read hides no other, in either list.
func TestListsOfObligationsLeaveOutWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	register(t, inner, r.ID, "good", "K", 0)
	b := runstore.NewBatch(r.ID, runstore.Unguarded("damage"))
	b.Append("obligation", []byte("{}"))
	b.Put("obligation/damaged", []byte("x"), runstore.Place{Index: tape.IndexObligations, At: runstore.After(0)})
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	logged := func() *tape.Tape { // a new one for each list: a Tape logs a record once a minute
		return tape.New(s, &tape.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	}
	one, err := logged().ListObligations(t.Context(), tape.ObligationQuery{Run: r.ID})
	all, allErr := logged().ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{})
	if err != nil || allErr != nil || keysOf(one) != "[good]" || keysOf(all) != "[good]" {
		t.Errorf("lists = %s, %v; %s, %v; want the good one", keysOf(one), err, keysOf(all), allErr)
	}
	if n := strings.Count(log.String(), "obligation/damaged"); n != 2 {
		t.Errorf("the log names the damaged record %d times, want 2: %s", n, log.String())
	}
}

func TestAnObligationThatMovesBetweenTheQueuesIsListedOnce(t *testing.T) {
	t.Parallel()
	inner, s, store := newTape(t)
	o := register(t, inner, begin(t, inner, "i").ID, "E", "K", 0)
	// The first scan is of the obligations that are due.
	tp := tape.New(behind(s, "scan", 1, func() {
		store.Advance(time.Second)
		attempted(t, inner, o, time.Time{})
	}), nil)
	got, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Pending: true, Stuck: true})
	if err != nil || keysOf(got) != "[E]" {
		t.Errorf("listed %s, %v, want it once", keysOf(got), err)
	}
}

// More rows than a page are listed once each, and an answer ends before 4 MiB.
func TestListUnresolvedObligationsByPages(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	r := begin(t, tp, "i")
	var want []string
	for i := range 1100 {
		store.Advance(time.Millisecond)
		want = append(want, register(t, tp, r.ID, fmt.Sprint(i), "K", 0).EffectKey)
	}
	got, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Limit: 2000})
	if err != nil || keysOf(got) != fmt.Sprint(want) {
		t.Errorf("%d obligations, %v, want %d", len(got), err, len(want))
	}
	one, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: r.ID})
	slices.Reverse(one)
	if err != nil || keysOf(one) != fmt.Sprint(want) {
		t.Errorf("%d obligations of the run, %v, want %d", len(one), err, len(want))
	}
	got, err = tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{})
	if err != nil || len(got) != 500 {
		t.Errorf("%d obligations, %v, want 500", len(got), err)
	}
	large := begin(t, tp, "large")
	for i := range 3 {
		if _, err := tp.RegisterCompensation(t.Context(), tape.Compensation{
			Run: large.ID, EffectKey: fmt.Sprint(i), Payload: strings.Repeat("x", 2_000_000)}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Limit: 2000}); err != nil || len(got) != 1101 {
		t.Errorf("%d obligations, %v, want 1101: the next does not fit", len(got), err)
	}
}
