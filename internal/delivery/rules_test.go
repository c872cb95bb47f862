package delivery_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

var (
	now   = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	later = runstore.At(now.Add(time.Hour))
	none  runstore.When
)

// The states of the tables. The claim of claimed and expired is the second, by b.
var states = map[string]delivery.State{
	"withheld": {Phase: delivery.Waiting, Attempts: 1, Claim: 2},
	"due":      {Phase: delivery.Waiting, Due: runstore.At(now), Attempts: 1, Claim: 2},
	"waiting":  {Phase: delivery.Waiting, Due: later, Attempts: 1, Claim: 2},
	"claimed":  {Phase: delivery.Claimed, Due: runstore.At(now), Ends: later, Holder: "b", Attempts: 2, Claim: 2},
	"expired":  {Phase: delivery.Claimed, Due: runstore.At(now), Ends: runstore.At(now), Holder: "b", Attempts: 2, Claim: 2},
	"done":     {Phase: delivery.Done, Attempts: 2, Claim: 2},
	"dead":     {Phase: delivery.Dead, Attempts: 2, Claim: 2},
	"unknown":  {Phase: 7, Due: runstore.At(now), Ends: runstore.At(now), Holder: "b", Attempts: 2, Claim: 2},
}

var (
	counted = delivery.Rules{CountClaims: true} // the rules of messages and tasks
	open    = delivery.Rules{Open: true}        // the rules of effects and obligations
)

func atMost(r delivery.Rules, n int) delivery.Rules { r.MaxAttempts = n; return r }

func TestClaim(t *testing.T) {
	ends := runstore.After(time.Minute)
	claimed := func(from string, attempts int) delivery.State {
		return delivery.State{Phase: delivery.Claimed, Due: states[from].Due, Ends: ends, Holder: "c", Claim: 3, Attempts: attempts}
	}
	dead := func(from string) delivery.State {
		s := states[from]
		return delivery.State{Phase: delivery.Dead, Due: s.Due, Claim: 2, Attempts: s.Attempts}
	}
	for _, c := range []struct {
		rules  delivery.Rules
		from   string
		want   delivery.State // if the result is Applied
		result delivery.Result
	}{
		{counted, "due", claimed("due", 2), delivery.Applied},
		{counted, "expired", claimed("expired", 3), delivery.Applied},
		{open, "due", claimed("due", 1), delivery.Applied},
		{open, "expired", claimed("expired", 2), delivery.Applied},
		// The last attempt: of claims only where they are attempts.
		{atMost(counted, 2), "due", claimed("due", 2), delivery.Applied},
		{atMost(counted, 1), "due", dead("due"), delivery.Applied},
		{atMost(counted, 2), "expired", dead("expired"), delivery.Applied},
		{atMost(counted, 3), "expired", claimed("expired", 3), delivery.Applied},
		{atMost(open, 1), "expired", claimed("expired", 2), delivery.Applied},
		{atMost(counted, -1), "expired", claimed("expired", 3), delivery.Applied},
		// A live entry that is not available is no dead letter, however many attempts it had.
		{atMost(counted, 1), "claimed", delivery.State{}, delivery.NotDue},
		{atMost(counted, 1), "waiting", delivery.State{}, delivery.NotDue},
		{open, "claimed", delivery.State{}, delivery.NotDue},
		{open, "waiting", delivery.State{}, delivery.NotDue},
		{counted, "withheld", delivery.State{}, delivery.Closed},
		{counted, "done", delivery.State{}, delivery.Closed},
		{open, "dead", delivery.State{}, delivery.Closed},
		{open, "unknown", delivery.State{}, delivery.Closed},
	} {
		if c.result != delivery.Applied {
			c.want = states[c.from]
		}
		got, result := c.rules.Claim(states[c.from], now, "c", ends)
		if got != c.want || result != c.result {
			t.Errorf("%+v, %s: %+v, %v; want %+v, %v", c.rules, c.from, got, result, c.want, c.result)
		}
	}
}

// An entry can be claimed from the very time on, and not a microsecond before.
func TestAvailable(t *testing.T) {
	for _, from := range []string{"due", "expired"} {
		s := states[from]
		if !s.AvailableAt(now) || s.AvailableAt(now.Add(-time.Microsecond)) {
			t.Errorf("%s: available at %v: %v, before: %v", from, now, s.AvailableAt(now), s.AvailableAt(now.Add(-time.Microsecond)))
		}
	}
	for _, from := range []string{"withheld", "done", "dead", "unknown"} {
		if s := states[from]; s.AvailableAt(runstore.EndOfTime) || !s.Available().IsZero() {
			t.Errorf("%s: available from %v", from, s.Available())
		}
	}
}

// Reports, by the state and the receipt: the results of Complete, Fail, Release and Extend.
func TestReports(t *testing.T) {
	const yes, closed, super, back = delivery.Applied, delivery.Closed, delivery.Superseded, delivery.Returned
	var (
		nobody  = delivery.Receipt{}
		current = delivery.Receipt{Claim: 2}
		former  = delivery.Receipt{Claim: 1}
		future  = delivery.Receipt{Claim: 3}
		b       = delivery.Receipt{Holder: "b"}
		a       = delivery.Receipt{Holder: "a"}
		both    = delivery.Receipt{Claim: 2, Holder: "b"}
		mixed   = delivery.Receipt{Claim: 2, Holder: "a"}
	)
	type results [4]delivery.Result
	table := []struct {
		from    string
		receipt delivery.Receipt
		counted results
		open    results
	}{
		{"claimed", nobody, results{super, super, super, super}, results{yes, yes, super, super}},
		{"claimed", current, results{yes, yes, yes, yes}, results{yes, yes, yes, yes}},
		{"claimed", former, results{super, super, super, super}, results{super, super, super, super}},
		{"claimed", future, results{super, super, super, super}, results{super, super, super, super}},
		{"claimed", b, results{yes, yes, yes, yes}, results{yes, yes, yes, yes}},
		{"claimed", a, results{super, super, super, super}, results{super, super, super, super}},
		{"claimed", both, results{yes, yes, yes, yes}, results{yes, yes, yes, yes}},
		{"claimed", mixed, results{super, super, super, super}, results{super, super, super, super}},
		{"waiting", nobody, results{back, back, back, back}, results{yes, yes, back, back}},
		// In open rules an outcome counts after its claim has ended; a second failure does not.
		{"waiting", current, results{back, back, back, back}, results{yes, back, back, back}},
		{"waiting", former, results{back, back, back, back}, results{back, back, back, back}},
		{"waiting", b, results{back, back, back, back}, results{back, back, back, back}},
	}
	for _, same := range []struct{ from, as string }{{"expired", "claimed"}, {"due", "waiting"}, {"withheld", "waiting"}} {
		for _, row := range table {
			if row.from == same.as { // expiry alone takes nothing from a holder
				row.from = same.from
				table = append(table, row)
			}
		}
	}
	for _, p := range []delivery.Receipt{nobody, current, former, b} {
		for _, from := range []string{"done", "dead", "unknown"} {
			table = append(table, struct {
				from          string
				receipt       delivery.Receipt
				counted, open results
			}{from, p, results{closed, closed, closed, closed}, results{closed, closed, closed, closed}})
		}
	}
	for _, row := range table {
		for _, c := range []struct {
			rules delivery.Rules
			want  results
		}{{counted, row.counted}, {open, row.open}} {
			s := states[row.from]
			var got results
			var next [4]delivery.State
			next[0], got[0] = c.rules.Complete(s, row.receipt)
			next[1], got[1] = c.rules.Fail(s, row.receipt, later)
			next[2], got[2] = c.rules.Release(s, row.receipt)
			next[3], got[3] = c.rules.Extend(s, row.receipt, later)
			if got != c.want {
				t.Errorf("%s, %+v, %+v: %v, want %v", row.from, row.receipt, c.rules, got, c.want)
			}
			for i := range next {
				if got[i] != yes && next[i] != s {
					t.Errorf("%s, %+v, %+v: refused as %v, and changed to %+v", row.from, row.receipt, c.rules, got[i], next[i])
				}
			}
		}
	}
}

// What applied reports change.
func TestReportsThatApply(t *testing.T) {
	b := delivery.Receipt{Holder: "b"}
	from := states["claimed"]
	waiting := func(attempts int, due runstore.When) delivery.State {
		return delivery.State{Phase: delivery.Waiting, Due: due, Claim: 2, Attempts: attempts}
	}
	final := func(p delivery.Phase, attempts int, due runstore.When) delivery.State {
		return delivery.State{Phase: p, Due: due, Claim: 2, Attempts: attempts}
	}
	extended := from
	extended.Ends = runstore.After(time.Minute)
	for name, c := range map[string]struct{ got, want delivery.State }{
		"an outcome keeps the due time":          {first(counted.Complete(from, b)), final(delivery.Done, 2, from.Due)},
		"a failed claim":                         {first(counted.Fail(from, b, later)), waiting(2, later)},
		"a failure that is counted":              {first(open.Fail(from, b, later)), waiting(3, later)},
		"the last claim":                         {first(atMost(counted, 2).Fail(from, b, later)), final(delivery.Dead, 2, none)},
		"more claims than allowed":               {first(atMost(counted, 1).Fail(from, b, later)), final(delivery.Dead, 2, none)},
		"the last but one claim":                 {first(atMost(counted, 3).Fail(from, b, later)), waiting(2, later)},
		"the last failure":                       {first(atMost(open, 3).Fail(from, b, later)), final(delivery.Dead, 3, none)},
		"the last but one failure":               {first(atMost(open, 4).Fail(from, b, later)), waiting(3, later)},
		"a caller gives up on a claim":           {first(counted.Fail(from, b, none)), final(delivery.Dead, 2, none)},
		"a caller gives up and the attempt":      {first(open.Fail(from, b, none)), final(delivery.Dead, 3, none)},
		"a released claim is no attempt":         {first(counted.Release(from, b)), waiting(1, runstore.After(0))},
		"a released claim changes no failures":   {first(open.Release(from, b)), waiting(2, runstore.After(0))},
		"a released last claim is no dead entry": {first(atMost(counted, 2).Release(from, b)), waiting(1, runstore.After(0))},
		"an extension changes nothing else":      {first(atMost(counted, 1).Extend(from, b, extended.Ends)), extended},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}

func first(s delivery.State, r delivery.Result) delivery.State {
	if r != delivery.Applied {
		panic(fmt.Sprintf("%+v is %v", s, r))
	}
	return s
}

// Of all ends of one claim one is applied, in every order, and none of a former claim.
func TestOneEndOfAClaim(t *testing.T) {
	for _, rules := range []delivery.Rules{counted, {CountClaims: true, MaxAttempts: 3}} {
		ends := map[string]func(delivery.State, delivery.Receipt) (delivery.State, delivery.Result){
			"complete": rules.Complete, "release": rules.Release,
			"fail": func(s delivery.State, p delivery.Receipt) (delivery.State, delivery.Result) {
				return rules.Fail(s, p, runstore.At(now))
			},
			"give up": func(s delivery.State, p delivery.Receipt) (delivery.State, delivery.Result) {
				return rules.Fail(s, p, none)
			},
		}
		for a, end := range ends {
			for b, again := range ends {
				s := first(rules.Claim(states["due"], now, "h", runstore.At(now)))
				p := delivery.Receipt{Claim: s.Claim}
				ended := first(end(s, p))
				if _, r := again(ended, p); r == delivery.Applied {
					t.Errorf("%s is applied after %s", b, a)
				}
				ended.Due = runstore.At(now)
				for _, state := range []delivery.State{ended, s} { // after the end, or the expiry
					next, r := rules.Claim(state, now, "h", later)
					if r != delivery.Applied || next.Phase != delivery.Claimed {
						continue
					}
					if _, r := again(next, p); r != delivery.Superseded {
						t.Errorf("%s of a former claim: %v", b, r)
					}
				}
			}
		}
	}
}

func TestResults(t *testing.T) {
	for r := delivery.Applied; r <= delivery.Returned; r++ {
		if r.String() == "" {
			t.Errorf("result %d has no name", int(r))
		}
	}
}
