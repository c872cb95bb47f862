package tape_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// due returns the ids of the timers that a query lists.
func due(t *testing.T, tp *tape.Tape, q tape.DueTimersQuery) string {
	t.Helper()
	listed, err := tp.ListDueTimers(t.Context(), q)
	if err != nil {
		t.Fatalf("ListDueTimers: %v", err)
	}
	ids := []string{}
	for _, m := range listed {
		if m.Fired != q.Claim {
			t.Errorf("timer %q is listed as fired %v, want %v", m.ID, m.Fired, q.Claim)
		}
		ids = append(ids, m.ID)
	}
	return fmt.Sprint(ids)
}

func setTimer(t *testing.T, tp *tape.Tape, run runstore.RunID, id string, at int64) tape.Timer {
	t.Helper()
	m, err := tp.SetTimer(t.Context(), tape.Timer{Run: run, ID: id, FireAtMS: at, Kind: "k", Payload: "p"}, runstore.Fence{})
	if err != nil {
		t.Fatalf("SetTimer: %v", err)
	}
	return m
}

// TestTimerStates applies every operation to a timer in every state, under every fence.
func TestTimerStates(t *testing.T) {
	t.Parallel()
	const past, future = 1, 4_000_000_000_000
	setup := map[string]func(*testing.T, *tape.Tape, runstore.RunID){
		"absent":  func(*testing.T, *tape.Tape, runstore.RunID) {},
		"waiting": func(t *testing.T, tp *tape.Tape, run runstore.RunID) { setTimer(t, tp, run, "m", future) },
		"due":     func(t *testing.T, tp *tape.Tape, run runstore.RunID) { setTimer(t, tp, run, "m", past) },
		"fired": func(t *testing.T, tp *tape.Tape, run runstore.RunID) {
			setTimer(t, tp, run, "m", past)
			due(t, tp, tape.DueTimersQuery{Claim: true})
		},
	}
	set := func(at int64) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) (string, error) {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) (string, error) {
			m, err := tp.SetTimer(t.Context(), tape.Timer{Run: run, ID: "m", FireAtMS: at, Kind: "k", Payload: "p"}, f)
			return fmt.Sprint(m.FireAtMS, m.Fired), err
		}
	}
	ops := map[string]func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) (string, error){
		"set due":    set(past),
		"set future": set(future),
		"cancel": func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) (string, error) {
			cancelled, err := tp.CancelTimer(t.Context(), run, "m", f)
			return fmt.Sprint(cancelled), err
		},
		"list": func(t *testing.T, tp *tape.Tape, _ runstore.RunID, _ runstore.Fence) (string, error) {
			return due(t, tp, tape.DueTimersQuery{}), nil
		},
		"claim": func(t *testing.T, tp *tape.Tape, _ runstore.RunID, _ runstore.Fence) (string, error) {
			return due(t, tp, tape.DueTimersQuery{Claim: true}), nil
		},
	}
	const setDue, setFuture = "1 false", "4000000000000 false"
	for _, c := range []struct{ state, op, want, after string }{
		{"absent", "set due", setDue, "due"}, {"absent", "set future", setFuture, "waiting"},
		{"absent", "cancel", "false", "absent"}, {"absent", "list", "[]", "absent"}, {"absent", "claim", "[]", "absent"},
		{"waiting", "set due", setDue, "due"}, {"waiting", "set future", setFuture, "waiting"},
		{"waiting", "cancel", "true", "absent"}, {"waiting", "list", "[]", "waiting"}, {"waiting", "claim", "[]", "waiting"},
		{"due", "set due", setDue, "due"}, {"due", "set future", setFuture, "waiting"},
		{"due", "cancel", "true", "absent"}, {"due", "list", "[m]", "due"}, {"due", "claim", "[m]", "fired"},
		{"fired", "set due", setDue, "due"}, {"fired", "set future", setFuture, "waiting"},
		{"fired", "cancel", "true", "absent"}, {"fired", "list", "[]", "fired"}, {"fired", "claim", "[]", "fired"},
	} {
		for _, fence := range []string{"none", "current", "stale"} {
			t.Run(c.state+"/"+c.op+"/"+fence, func(t *testing.T) {
				t.Parallel()
				tp, s, _ := newTape(t)
				stale, current := begin(t, tp, "i"), begin(t, tp, "i")
				setup[c.state](t, tp, stale.ID)
				before := historyOf(t, s, stale.ID)
				f := map[string]runstore.Fence{"stale": stale.Lease.Fence(), "current": current.Lease.Fence()}[fence]
				got, err := ops[c.op](t, tp, stale.ID, f)
				h := historyOf(t, s, stale.ID)
				if fence == "stale" && c.op != "list" && c.op != "claim" {
					if !errors.Is(err, runstore.ErrFenced) || !reflect.DeepEqual(h, before) {
						t.Errorf("%s = %v, want ErrFenced and no change", c.op, err)
					}
					return
				}
				if err != nil || got != c.want {
					t.Errorf("%s = %s, %v, want %s", c.op, got, err, c.want)
				}
				if len(h.events) != len(before.events) {
					t.Errorf("journal = %v, want nothing new", h.kinds())
				}
				if after := timerState(t, s, h); after != c.after {
					t.Errorf("the timer is %s, want %s", after, c.after)
				}
			})
		}
	}
}

// timerState returns the state of timer "m".
func timerState(t *testing.T, s runstore.RunStore, h history) string {
	t.Helper()
	queued, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: tape.IndexTimers, Until: runstore.EndOfTime, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range h.records {
		if r.Key != "timer/m" {
			continue
		}
		fired := strings.Contains(string(r.Value), `"fired":true`)
		if fired == (len(queued) == 1) {
			t.Errorf("fired %v, but %d places", fired, len(queued))
		}
		switch {
		case fired:
			return "fired"
		case queued[0].At.Year() == 1970:
			return "due"
		default:
			return "waiting"
		}
	}
	return "absent"
}

func TestTimerFields(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	r := begin(t, tp, "i")
	first := setTimer(t, tp, r.ID, "é", 5)
	store.Advance(time.Second)
	for _, at := range []int64{0, -1, math.MinInt64, 253402300799999} {
		again, err := tp.SetTimer(t.Context(), tape.Timer{Run: r.ID, ID: "é", FireAtMS: at, Kind: "other", Payload: "\x00"}, runstore.Fence{})
		want := tape.Timer{Run: r.ID, ID: "é", FireAtMS: at, Kind: "other", Payload: "\x00", CreatedAt: first.CreatedAt}
		if err != nil || again != want || first.CreatedAt.IsZero() {
			t.Errorf("SetTimer = %+v, %v, want %+v", again, err, want)
		}
		listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Now: runstore.EndOfTime.Add(time.Hour)})
		if err != nil || len(listed) != 1 || listed[0] != want {
			t.Errorf("listed %+v, %v, want %+v", listed, err, want)
		}
	}
	generated := setTimer(t, tp, r.ID, "", 1)
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(generated.ID) {
		t.Errorf("generated id %q, want a UUID of version 4", generated.ID)
	}
	if _, err := tp.SetTimer(t.Context(), tape.Timer{Run: "no-such-run"}, runstore.Fence{}); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("SetTimer of no run = %v, want ErrNoSuchRun", err)
	}
	if cancelled, err := tp.CancelTimer(t.Context(), "no-such-run", "x", runstore.Fence{}); cancelled || err != nil {
		t.Errorf("CancelTimer of no run = %v, %v, want false", cancelled, err)
	}
}

func TestTimersAreListedInOrder(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	setTimer(t, tp, a.ID, "late", 2000)
	setTimer(t, tp, b.ID, "zero", 0)
	setTimer(t, tp, a.ID, "negative", -7)
	setTimer(t, tp, b.ID, "early", 1000)
	setTimer(t, tp, b.ID, "future", 4_000_000_000_000)
	damaged := runstore.NewBatch(a.ID, runstore.Unguarded("a test"))
	damaged.Put("timer/damaged", []byte("?"), runstore.Place{Index: tape.IndexTimers, At: runstore.At(time.UnixMilli(1))})
	if _, err := s.Commit(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    tape.DueTimersQuery
		want string
	}{
		{tape.DueTimersQuery{}, "[negative zero early late]"},
		{tape.DueTimersQuery{Now: time.UnixMilli(1999)}, "[negative zero early]"},
		{tape.DueTimersQuery{Now: time.UnixMilli(2000)}, "[negative zero early late]"},
		{tape.DueTimersQuery{Now: time.UnixMilli(-1)}, "[]"},
		{tape.DueTimersQuery{Now: time.UnixMilli(4_000_000_000_000)}, "[negative zero early late future]"},
		{tape.DueTimersQuery{Limit: 3}, "[negative zero early]"},
		{tape.DueTimersQuery{Limit: 3, Claim: true}, "[negative zero early]"},
		{tape.DueTimersQuery{Claim: true}, "[late]"},
		{tape.DueTimersQuery{Claim: true}, "[]"},
	} {
		if got := due(t, tp, c.q); got != c.want {
			t.Errorf("%+v lists %s, want %s", c.q, got, c.want)
		}
	}
}

func TestTimerLimits(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	before := historyOf(t, s, r.ID)
	long := strings.Repeat("x", 2_000_001)
	set := func(m tape.Timer) error {
		m.Run = r.ID
		_, err := tp.SetTimer(t.Context(), m, runstore.Fence{})
		return err
	}
	cancel := func(id string) error {
		_, err := tp.CancelTimer(t.Context(), r.ID, id, runstore.Fence{})
		return err
	}
	for _, c := range []struct {
		err          error
		kind         error
		field, limit string
	}{
		{set(tape.Timer{ID: long[:1019]}), runstore.ErrTooLarge, "timer_id", "1018"},
		{set(tape.Timer{ID: "\xff"}), runstore.ErrInvalid, "timer_id", "UTF-8"},
		{set(tape.Timer{Kind: "\xff"}), runstore.ErrInvalid, "kind", "UTF-8"},
		{set(tape.Timer{Payload: "\xff"}), runstore.ErrInvalid, "payload_json", "UTF-8"},
		{set(tape.Timer{Kind: long}), runstore.ErrTooLarge, "kind", "2000000"},
		{set(tape.Timer{Kind: "k", Payload: long[1:]}), runstore.ErrTooLarge, "payload_json", "2000000"},
		{set(tape.Timer{FireAtMS: 253402300800000}), runstore.ErrInvalid, "fire_at_ms", "253402300799999"},
		{set(tape.Timer{FireAtMS: math.MaxInt64}), runstore.ErrInvalid, "fire_at_ms", "253402300799999"},
		{cancel(long[:1019]), runstore.ErrTooLarge, "timer_id", "1018"},
		{cancel("\xff"), runstore.ErrInvalid, "timer_id", "UTF-8"},
	} {
		var limit *runstore.InputError
		if !errors.As(c.err, &limit) || limit.Kind != c.kind || limit.Field != c.field || !strings.Contains(limit.Problem, c.limit) {
			t.Errorf("%v, want %v naming %s and %s", c.err, c.kind, c.field, c.limit)
		}
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("refused input changed %+v to %+v", before, after)
	}
	// The largest are listed, as many as fit into an answer; none is fired that is not returned.
	for i := range 3 {
		if err := set(tape.Timer{ID: long[:1017] + fmt.Sprint(i), FireAtMS: int64(i), Payload: long[1:]}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 1, 0} {
		if listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Claim: true}); err != nil || len(listed) != want {
			t.Errorf("claimed %d, %v, want %d", len(listed), err, want)
		}
	}
}
