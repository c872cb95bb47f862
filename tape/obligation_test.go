package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// register registers the obligation (effect, kind) of a run.
func register(t *testing.T, tp *tape.Tape, run runstore.RunID, effect, kind string, maxAttempts int32) tape.Obligation {
	t.Helper()
	o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{
		Run: run, EffectKey: effect, Kind: kind, Payload: `{"p":1}`, Compensator: "m:f", MaxAttempts: maxAttempts,
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func claim(t *testing.T, tp *tape.Tape, o tape.Obligation, claimer string, ttl time.Duration) tape.Obligation {
	t.Helper()
	c, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: o.Run, Seq: o.Seq, Claimer: claimer, TTL: ttl})
	if err != nil || !c.Acquired || !c.Found {
		t.Fatalf("ClaimObligation = %+v, %v, want it acquired", c, err)
	}
	return c.Obligation
}

// obligationStates makes an obligation with two attempts in each state. Its claims, if any, were
// two: generation 1 is stale and 2 current.
var obligationStates = []struct {
	name string
	make func(*testing.T, *tape.Tape, *memory.Store, tape.Obligation) tape.Obligation
}{
	{"new", func(_ *testing.T, _ *tape.Tape, _ *memory.Store, o tape.Obligation) tape.Obligation { return o }},
	{"waiting", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		return attempted(t, tp, twice(t, tp, s, o), now(t, s).Add(time.Hour))
	}},
	{"due", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		o = attempted(t, tp, twice(t, tp, s, o), now(t, s).Add(time.Minute))
		s.Advance(time.Hour)
		return o
	}},
	{"claimed", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		return twice(t, tp, s, o)
	}},
	{"expired", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		o = twice(t, tp, s, o)
		s.Advance(time.Hour)
		return o
	}},
	{"compensated", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		return resolved(t, tp, twice(t, tp, s, o), tape.ObligationCompensated)
	}},
	{"stuck", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		return attempted(t, tp, twice(t, tp, s, o), time.Time{})
	}},
	{"resolved stuck", func(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
		return resolved(t, tp, twice(t, tp, s, o), tape.ObligationStuck)
	}},
}

func now(t *testing.T, s *memory.Store) time.Time {
	t.Helper()
	at, err := s.Open().Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func twice(t *testing.T, tp *tape.Tape, s *memory.Store, o tape.Obligation) tape.Obligation {
	t.Helper()
	claim(t, tp, o, "first", time.Second)
	s.Advance(time.Minute)
	return claim(t, tp, o, "second", time.Minute)
}

func attempted(t *testing.T, tp *tape.Tape, o tape.Obligation, next time.Time) tape.Obligation {
	t.Helper()
	o, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: o.Run, Seq: o.Seq, Error: "e", Next: next})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func resolved(t *testing.T, tp *tape.Tape, o tape.Obligation, status tape.ObligationStatus) tape.Obligation {
	t.Helper()
	o, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: o.Run, Seq: o.Seq, Status: status, Result: "r"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// nextTry is the time of the retry that the table schedules.
var nextTry = time.Date(2200, 1, 1, 0, 0, 0, 5_000_000, time.UTC)

const nextTryMS = 7258118400005

// obligationOps are the operations, what they do to a row that they change, and the members of the
// entry that they journal beside the row's names.
var obligationOps = []struct {
	name string
	do   func(*testing.T, *tape.Tape, tape.Obligation, int64, runstore.Fence) (tape.Obligation, bool, error)
	row  func(*tape.Obligation)
	// entry is the payload, with the seq of the obligation for %d.
	entry func(tape.Obligation) string
	// from lists the states that it changes: without a generation, under the current one.
	from, fromClaim []string
}{
	{
		name: "register",
		do: func(t *testing.T, tp *tape.Tape, o tape.Obligation, _ int64, f runstore.Fence) (tape.Obligation, bool, error) {
			o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{
				Run: o.Run, EffectKey: o.EffectKey, Kind: o.Kind, Payload: "other", MaxAttempts: 9, Fence: f})
			return o, false, err
		},
	},
	{
		name: "claim",
		do: func(t *testing.T, tp *tape.Tape, o tape.Obligation, _ int64, f runstore.Fence) (tape.Obligation, bool, error) {
			c, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: o.Run, Seq: o.Seq, Claimer: "third", Fence: f})
			if err == nil && !c.Found {
				err = errors.New("not found")
			}
			return c.Obligation, c.Acquired, err
		},
		row: func(o *tape.Obligation) {
			o.Status, o.ClaimedBy, o.ClaimExpires = tape.ObligationCommitted, "third", o.Time.Add(time.Minute)
			o.Claims++
		},
		entry: func(o tape.Obligation) string {
			return fmt.Sprintf(`{"claimer":"third","effect_key":"E","kind":"K","obligation_seq":%d,"status":"committed","transition":"claimed"}`, o.Seq)
		},
		from:      []string{"new", "due", "expired"},
		fromClaim: []string{"new", "due", "expired"}, // a claim presents none
	},
	{
		name: "retry",
		do: func(t *testing.T, tp *tape.Tape, o tape.Obligation, gen int64, f runstore.Fence) (tape.Obligation, bool, error) {
			o, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{
				Run: o.Run, Seq: o.Seq, Error: "failed", Next: nextTry, Generation: gen, Fence: f})
			return o, false, err
		},
		row: func(o *tape.Obligation) {
			o.Attempts++
			o.LastError, o.ClaimedBy, o.ClaimExpires = "failed", "", time.Time{}
			o.Status, o.NextAttempt = tape.ObligationPending, nextTry
			if o.Attempts == 2 {
				o.Status, o.NextAttempt = tape.ObligationStuck, time.Time{}
			}
		},
		entry: func(o tape.Obligation) string {
			status, transition, next := "pending", "retry-scheduled", int64(nextTryMS)
			if o.Attempts == 2 {
				status, transition, next = "stuck", "stuck", 0
			}
			return fmt.Sprintf(`{"attempts":%d,"effect_key":"E","error":"failed","kind":"K","next_attempt_at_ms":%d,`+
				`"obligation_seq":%d,"status":%q,"transition":%q}`, o.Attempts, next, o.Seq, status, transition)
		},
		from:      []string{"new", "waiting", "due", "claimed", "expired"},
		fromClaim: []string{"claimed", "expired"}, // a claim ends with its first report
	},
	{
		name: "give up",
		do: func(t *testing.T, tp *tape.Tape, o tape.Obligation, gen int64, f runstore.Fence) (tape.Obligation, bool, error) {
			o, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{
				Run: o.Run, Seq: o.Seq, Error: "over", Generation: gen, Fence: f})
			return o, false, err
		},
		row: func(o *tape.Obligation) {
			o.Attempts++
			o.LastError, o.ClaimedBy, o.ClaimExpires = "over", "", time.Time{}
			o.Status, o.NextAttempt = tape.ObligationStuck, time.Time{}
		},
		entry: func(o tape.Obligation) string {
			return fmt.Sprintf(`{"attempts":%d,"effect_key":"E","error":"over","kind":"K","next_attempt_at_ms":0,`+
				`"obligation_seq":%d,"status":"stuck","transition":"stuck"}`, o.Attempts, o.Seq)
		},
		from:      []string{"new", "waiting", "due", "claimed", "expired"},
		fromClaim: []string{"claimed", "expired"},
	},
	{
		name: "compensated",
		do:   resolving(tape.ObligationCompensated),
		row:  func(o *tape.Obligation) { resolvedRow(o, tape.ObligationCompensated) },
		entry: func(o tape.Obligation) string {
			return fmt.Sprintf(`{"effect_key":"E","kind":"K","obligation_seq":%d,"status":"compensated","transition":"resolved"}`, o.Seq)
		},
		from:      []string{"new", "waiting", "due", "claimed", "expired", "stuck", "resolved stuck"},
		fromClaim: []string{"waiting", "due", "claimed", "expired", "stuck", "resolved stuck"},
	},
	{
		name: "any other result",
		do:   resolving(tape.ObligationPending),
		row:  func(o *tape.Obligation) { resolvedRow(o, tape.ObligationCompensated) },
		entry: func(o tape.Obligation) string {
			return fmt.Sprintf(`{"effect_key":"E","kind":"K","obligation_seq":%d,"status":"compensated","transition":"resolved"}`, o.Seq)
		},
		from:      []string{"new", "waiting", "due", "claimed", "expired", "stuck", "resolved stuck"},
		fromClaim: []string{"waiting", "due", "claimed", "expired", "stuck", "resolved stuck"},
	},
	{
		name: "stuck",
		do:   resolving(tape.ObligationStuck),
		row:  func(o *tape.Obligation) { resolvedRow(o, tape.ObligationStuck) },
		entry: func(o tape.Obligation) string {
			return fmt.Sprintf(`{"effect_key":"E","kind":"K","obligation_seq":%d,"status":"stuck","transition":"resolved"}`, o.Seq)
		},
		from:      []string{"new", "waiting", "due", "claimed", "expired"},
		fromClaim: []string{"waiting", "due", "claimed", "expired"},
	},
}

func resolving(status tape.ObligationStatus) func(*testing.T, *tape.Tape, tape.Obligation, int64, runstore.Fence) (tape.Obligation, bool, error) {
	return func(t *testing.T, tp *tape.Tape, o tape.Obligation, gen int64, f runstore.Fence) (tape.Obligation, bool, error) {
		o, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{
			Run: o.Run, Seq: o.Seq, Status: status, Result: "{}", Generation: gen, Fence: f})
		return o, false, err
	}
}

func resolvedRow(o *tape.Obligation, status tape.ObligationStatus) {
	o.Status, o.Result, o.ClaimedBy, o.ClaimExpires = status, "{}", "", time.Time{}
}

// TestObligationTransitions applies every operation to an obligation in every state, under each
// fence and each generation of a claim.
func TestObligationTransitions(t *testing.T) {
	t.Parallel()
	for _, state := range obligationStates {
		for _, op := range obligationOps {
			for _, fence := range []string{"none", "current", "stale"} {
				for _, presented := range []string{"none", "current", "stale"} {
					t.Run(strings.Join([]string{state.name, op.name, fence, presented}, "/"), func(t *testing.T) {
						t.Parallel()
						tp, s, store := newTape(t)
						stale := begin(t, tp, "i").Lease.Fence()
						current := begin(t, tp, "i")
						before := state.make(t, tp, store, register(t, tp, current.ID, "E", "K", 2))
						store.Advance(time.Second)
						history := historyOf(t, s, current.ID)
						f := map[string]runstore.Fence{"current": current.Lease.Fence(), "stale": stale}[fence]
						gen := map[string]int64{"current": 2, "stale": 1}[presented]

						got, acquired, err := op.do(t, tp, before, gen, f)
						after := historyOf(t, s, current.ID)
						if fence == "stale" {
							if !errors.Is(err, runstore.ErrFenced) || !reflect.DeepEqual(history, after) {
								t.Errorf("a zombie got %v and changed %+v to %+v", err, history, after)
							}
							return
						}
						changes := presented == "none" && slices.Contains(op.from, state.name) ||
							presented == "current" && slices.Contains(op.fromClaim, state.name) ||
							op.name == "claim" && slices.Contains(op.from, state.name)
						want := before
						if changes {
							want.Time = got.Time
							op.row(&want)
						}
						if err != nil || got != want || acquired != (changes && op.name == "claim") {
							t.Fatalf("got %+v, %t, %v, want %+v", got, acquired, err, want)
						}
						rows, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: current.ID})
						if err != nil || len(rows) != 1 || rows[0] != want {
							t.Errorf("stored %+v, %v, want %+v", rows, err, want)
						}
						if !changes {
							if !reflect.DeepEqual(history, after) {
								t.Errorf("changed %+v to %+v, want no change", history, after)
							}
							return
						}
						last := after.events[len(after.events)-1]
						if len(after.events) != len(history.events)+1 || last.Kind != "obligation" || string(last.Data) != op.entry(want) {
							t.Errorf("%d new entries, the last is %s %s, want obligation %s",
								len(after.events)-len(history.events), last.Kind, last.Data, op.entry(want))
						}
					})
				}
			}
		}
	}
}

// A person who has compensated by hand records it: the obligation leaves the list of STUCK ones.
func TestStuckObligationIsCompensatedByHand(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	never := register(t, tp, r.ID, "E", "never claimed", 1)
	claimed := register(t, tp, r.ID, "E", "claimed", 2)
	never = attempted(t, tp, never, time.Time{})
	claimed = attempted(t, tp, twice(t, tp, store, claimed), time.Time{})
	stuck := func() (list []tape.Obligation) {
		t.Helper()
		list, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Stuck: true})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := stuck(); len(list) != 2 {
		t.Fatalf("STUCK are %+v, want two", list)
	}
	for _, o := range []tape.Obligation{never, claimed} {
		if got := resolved(t, tp, o, tape.ObligationCompensated); got.Status != tape.ObligationCompensated || got.Result != "r" || got.LastError != "e" {
			t.Errorf("ResolveObligation = %+v, want it COMPENSATED with its result and last error", got)
		}
	}
	if list := stuck(); len(list) != 0 {
		t.Errorf("STUCK are %+v, want none", list)
	}
	before := historyOf(t, s, r.ID)
	for _, o := range []tape.Obligation{never, claimed} { // COMPENSATED is final
		if got := resolved(t, tp, o, tape.ObligationStuck); got.Status != tape.ObligationCompensated {
			t.Errorf("ResolveObligation to STUCK = %+v, want it COMPENSATED", got)
		}
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("changed %+v to %+v", before, after)
	}
}

func TestRegisterCompensation(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	got := register(t, tp, r.ID, "E", "K", 0)
	want := tape.Obligation{
		Run: r.ID, Seq: 2, EffectKey: "E", Kind: "K", Payload: `{"p":1}`, Compensator: "m:f", Status: tape.ObligationPending,
		Time: got.Time, MaxAttempts: 5, NextAttempt: got.Time,
	}
	if got != want || got.Time.IsZero() {
		t.Errorf("RegisterCompensation = %+v, want %+v", got, want)
	}
	event := historyOf(t, s, r.ID).events[1]
	if want := `{"effect_key":"E","kind":"K","status":"pending","transition":"registered"}`; event.Kind != "obligation" || string(event.Data) != want {
		t.Errorf("entry = %s %s, want obligation %s", event.Kind, event.Data, want)
	}
	// The identity is the pair, however it is cut.
	for i, names := range [][2]string{{"E", "L"}, {"", "EK"}, {"EK", ""}, {"E\x00K", ""}, {"E\x00", "K"}} {
		if o := register(t, tp, r.ID, names[0], names[1], 1); o.Seq != runstore.Seq(3+i) {
			t.Errorf("%q: seq %d, want %d", names, o.Seq, 3+i)
		}
	}
	if _, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: "no-such-run"}); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("RegisterCompensation of no run = %v, want ErrNoSuchRun", err)
	}
}

func TestNoSuchObligation(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	zombie := begin(t, tp, "i")
	begin(t, tp, "i")
	o := register(t, tp, zombie.ID, "E", "K", 0)
	claimed := claim(t, tp, o, "c", time.Minute)
	before := historyOf(t, s, zombie.ID)
	for _, at := range []tape.Obligation{
		{Run: zombie.ID, Seq: -1}, {Run: zombie.ID}, {Run: zombie.ID, Seq: 1},
		{Run: zombie.ID, Seq: o.Seq + 1}, // the entry of its claim
		{Run: zombie.ID, Seq: 99}, {Run: zombie.ID, Seq: 1 << 62}, {Run: "no-such-run", Seq: 1},
	} {
		c, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: at.Run, Seq: at.Seq})
		if err != nil || c != (tape.ObligationClaim{}) {
			t.Errorf("claim of %d = %+v, %v, want nothing", at.Seq, c, err)
		}
		if _, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: at.Run, Seq: at.Seq}); !errors.Is(err, tape.ErrNoSuchObligation) {
			t.Errorf("attempt of %d = %v, want ErrNoSuchObligation", at.Seq, err)
		}
		if _, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: at.Run, Seq: at.Seq}); !errors.Is(err, tape.ErrNoSuchObligation) {
			t.Errorf("resolution of %d = %v, want ErrNoSuchObligation", at.Seq, err)
		}
	}
	if _, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{
		Run: zombie.ID, Seq: 99, Fence: zombie.Lease.Fence()}); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a zombie's claim of nothing = %v, want ErrFenced", err)
	}
	if after := historyOf(t, s, zombie.ID); !reflect.DeepEqual(before, after) || claimed.Claims != 1 {
		t.Errorf("changed %+v to %+v", before, after)
	}
}

// Eight claimers in each of two processes.
func TestOneClaimerWins(t *testing.T) {
	t.Parallel()
	inner, s, store := newTape(t)
	r := begin(t, inner, "i")
	o := register(t, inner, r.ID, "E", "K", 0)
	for round := range 3 {
		claims := make([]tape.ObligationClaim, 16)
		var wg sync.WaitGroup
		tapes := []*tape.Tape{tape.New(s, nil), tape.New(s, nil)}
		for i := range claims {
			wg.Go(func() {
				var err error
				claims[i], err = tapes[i%2].ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: r.ID, Seq: o.Seq, Claimer: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		winner := slices.IndexFunc(claims, func(c tape.ObligationClaim) bool { return c.Acquired })
		for i, c := range claims {
			if c.Acquired != (i == winner) || c.Obligation.ClaimedBy != fmt.Sprint(winner) || c.Obligation.Claims != int64(round+1) {
				t.Errorf("round %d: claimer %d got %+v, want the claim of %d", round, i, c, winner)
			}
		}
		store.Advance(time.Hour)
	}
}

func TestLostRepliesAboutObligationsAndBudgetsAreResolved(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	r := begin(t, tp, "i")
	f := r.Lease.Fence()
	o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: r.ID, EffectKey: "E", Kind: "K", Fence: f})
	if err != nil || o.Seq != 2 {
		t.Errorf("RegisterCompensation = %+v, %v, want seq 2", o, err)
	}
	c, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: r.ID, Seq: 2, Claimer: "c", Fence: f})
	if err != nil || !c.Acquired || c.Obligation.Claims != 1 {
		t.Errorf("ClaimObligation = %+v, %v, want generation 1", c, err)
	}
	o, err = tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: r.ID, Seq: 2, Next: time.UnixMilli(1), Fence: f})
	if err != nil || o.Attempts != 1 {
		t.Errorf("RecordObligationAttempt = %+v, %v, want 1 attempt", o, err)
	}
	o, err = tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: r.ID, Seq: 2, Fence: f})
	if err != nil || o.Status != tape.ObligationCompensated || o.Seq != 2 {
		t.Errorf("ResolveObligation = %+v, %v, want COMPENSATED", o, err)
	}
	for i := range 2 {
		b, err := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID, USD: 1, Tokens: 2, Fence: f})
		if want := (tape.Budget{Run: r.ID, USDSpent: float64(i + 1), TokensSpent: int64(2 * (i + 1))}); err != nil || b != want {
			t.Errorf("ChargeBudget = %+v, %v, want %+v", b, err, want)
		}
	}
	b, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: r.ID, USD: 5, Fence: f})
	if want := (tape.Budget{Run: r.ID, USDCap: 5, USDSpent: 2, TokensSpent: 4}); err != nil || b != want {
		t.Errorf("SetBudget = %+v, %v, want %+v", b, err, want)
	}
	if got, want := fmt.Sprint(historyOf(t, s, r.ID).kinds()), "[run obligation obligation obligation obligation]"; got != want {
		t.Errorf("journal = %s, want %s", got, want)
	}
}
