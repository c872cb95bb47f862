package rules_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// The tests in this file judge a head one microsecond before a bound, at the bound, and one
// microsecond after it. A microsecond is the precision of the store clock.
var instants = [3]time.Duration{-runstore.TimePrecision, 0, runstore.TimePrecision}

// begun is the time of the grants in this file.
var begun = time.Unix(1e9, 0).UTC()

// grantedTo returns a head whose lease was granted at begun, and the grant's fence.
func grantedTo(spec runstore.LeaseSpec) (rules.Head, runstore.Fence) {
	spec.Owner, spec.TTL, spec.Grant = "owner", time.Minute, "grant"
	h := rules.Head{Run: runstore.Run{ID: "run"}}.Granted(runstore.AcquireRequest{Run: "run", LeaseSpec: spec}, begun)
	return h, h.Lease(spec.TTL).Fence()
}

// contending returns the request of another owner.
func contending(preempt string, guards ...runstore.Guard) runstore.AcquireRequest {
	return runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "contender", TTL: time.Minute, Grant: "other"},
		Preempt: preempt, Guards: guards,
	}
}

// checkAround fails the test unless judge returns, at each of the instants around bound, an error
// that matches that of want.
func checkAround(t *testing.T, what string, bound time.Time, want [3]error, judge func(now time.Time) error) {
	t.Helper()
	for i, offset := range instants {
		if got := judge(bound.Add(offset)); !errors.Is(got, want[i]) {
			t.Errorf("%s, %v from the bound: got error %v, want %v", what, offset, got, want[i])
		}
	}
}

// TestStrictExpiry checks that the holder of a strict lease is refused from the expiry on, and the
// holder of another lease never.
func TestStrictExpiry(t *testing.T) {
	t.Parallel()
	for strict, want := range map[bool][3]error{
		false: {},
		true:  {nil, runstore.ErrLeaseExpired, runstore.ErrLeaseExpired},
	} {
		h, f := grantedTo(runstore.LeaseSpec{Strict: strict})
		for name, judge := range map[string]func(now time.Time) error{
			"Fence":  func(now time.Time) error { return h.Fence(f, now) },
			"Guards": func(now time.Time) error { return h.Guards(runstore.GuardsOf(f), now, nil) },
			"Renew":  func(now time.Time) error { return h.Renew(runstore.RenewRequest{Fence: f, TTL: time.Minute}, now) },
			"Release": func(now time.Time) error {
				_, err := h.Release(f, now)
				return err
			},
		} {
			checkAround(t, fmt.Sprintf("strict %t: %s", strict, name), begun.Add(time.Minute), want, judge)
		}
	}
}

// TestAcquireAroundExpiry checks that a lease is held until its expiry and free from then on, unless
// the request preempts it or the holder consents, and what the next grant records of its end.
func TestAcquireAroundExpiry(t *testing.T) {
	t.Parallel()
	h, f := grantedTo(runstore.LeaseSpec{})
	for _, test := range []struct {
		name string
		req  runstore.AcquireRequest
		want [3]error
		ends [3]runstore.GrantEnd // of the grants that are allowed
	}{
		{"a contender", contending(""), [3]error{runstore.ErrLeaseHeld},
			[3]runstore.GrantEnd{1: runstore.EndExpired, 2: runstore.EndExpired}},
		{"a preempt", contending("why"), [3]error{},
			[3]runstore.GrantEnd{runstore.EndPreempted, runstore.EndExpired, runstore.EndExpired}},
		{"a successor with the holder's consent", contending("", f), [3]error{},
			[3]runstore.GrantEnd{runstore.EndHandedOff, runstore.EndHandedOff, runstore.EndHandedOff}},
	} {
		checkAround(t, test.name, begun.Add(time.Minute), test.want, func(now time.Time) error {
			_, err := h.Acquire(test.req, now)
			return err
		})
		for i, offset := range instants {
			if test.want[i] != nil {
				continue
			}
			if got := h.Granted(test.req, begun.Add(time.Minute+offset)).Holder.Former; got != test.ends[i] {
				t.Errorf("%s, %v from the expiry: the former grant was %v, want %v", test.name, offset, got, test.ends[i])
			}
		}
	}
	var held *runstore.LeaseHeldError
	if _, err := h.Acquire(contending(""), begun.Add(time.Minute-runstore.TimePrecision)); !errors.As(err, &held) || held.Remaining != runstore.TimePrecision {
		t.Errorf("a contender at the last microsecond: got error %v, want *LeaseHeldError with 1µs remaining", err)
	}
}

// TestStallBound checks that a renewal without progress is refused only when the last progress is
// longer ago than the grant's bound, whether the lease has expired or not.
func TestStallBound(t *testing.T) {
	t.Parallel()
	var writes, status runstore.Writes
	writes.Append("test", nil)
	status.Status = new(runstore.Status)
	for _, bound := range []time.Duration{time.Second, time.Hour} {
		stalled := [3]error{nil, nil, runstore.ErrNoProgress}
		for _, test := range []struct {
			name   string
			spec   runstore.LeaseSpec
			writes runstore.Writes
			want   [3]error
		}{
			{"no bound", runstore.LeaseSpec{}, runstore.Writes{}, [3]error{}},
			{"a bound", runstore.LeaseSpec{MaxStall: bound}, runstore.Writes{}, stalled},
			{"a bound and a status", runstore.LeaseSpec{MaxStall: bound}, status, stalled},
			{"a bound and an event", runstore.LeaseSpec{MaxStall: bound}, writes, [3]error{}},
		} {
			h, f := grantedTo(test.spec)
			progressed := begun.Add(10 * time.Second)
			h.Holder.ProgressedAt = progressed
			checkAround(t, fmt.Sprintf("%s (%v)", test.name, bound), progressed.Add(bound), test.want, func(now time.Time) error {
				return h.Renew(runstore.RenewRequest{Fence: f, TTL: time.Minute, Writes: test.writes}, now)
			})
		}
	}
}

// TestSuccessorInheritsNothing checks that a grant has the strictness and the bound on stalling of
// its own request, and progress from the time of the grant.
func TestSuccessorInheritsNothing(t *testing.T) {
	t.Parallel()
	h, _ := grantedTo(runstore.LeaseSpec{Strict: true, MaxStall: time.Hour})
	if !h.Holder.Strict || h.Holder.MaxStall != time.Hour || !h.Lease(time.Minute).Strict {
		t.Errorf("got the holder %+v, want a strict one with the bound %v", h.Holder, time.Hour)
	}
	now := begun.Add(2 * time.Minute)
	next := h.Granted(contending(""), now)
	if got := next.Holder; got.Strict || got.MaxStall != 0 || !got.ProgressedAt.Equal(now) || !got.GrantedAt.Equal(now) || !got.RenewedAt.Equal(now) {
		t.Errorf("got the holder %+v, want one that is not strict, has no bound, and made progress at %v", got, now)
	}
}

// TestRenewedNeverShortens checks the expiry after a renewal that would end around the old expiry.
func TestRenewedNeverShortens(t *testing.T) {
	t.Parallel()
	h, _ := grantedTo(runstore.LeaseSpec{})
	old := begun.Add(time.Minute)
	for i, want := range []time.Time{old, old, old.Add(runstore.TimePrecision)} {
		now := begun.Add(30*time.Second + instants[i])
		got := h.Renewed(30*time.Second, now)
		if !got.ExpiresAt.Equal(want) || !got.Holder.ExpiresAt.Equal(want) || !got.Holder.RenewedAt.Equal(now) {
			t.Errorf("renewed until %v from the old expiry: expires at %v and %v, renewed at %v; want %v, %v",
				instants[i], got.ExpiresAt, got.Holder.ExpiresAt, got.Holder.RenewedAt, want, now)
		}
	}
}

// TestRunnable checks that a run is runnable from the later of its runnable time and the expiry of
// its current grant, and never without a runnable time.
func TestRunnable(t *testing.T) {
	t.Parallel()
	current, _ := grantedTo(runstore.LeaseSpec{})
	expiry := current.ExpiresAt
	for _, test := range []struct {
		name string
		head rules.Head
		at   time.Time // RunnableAt
		want time.Time
	}{
		{"never leased, no time", rules.Head{}, time.Time{}, time.Time{}},
		{"never leased", rules.Head{}, begun, begun},
		{"leased, no time", current, time.Time{}, time.Time{}},
		{"leased, before the expiry", current, expiry.Add(-runstore.TimePrecision), expiry},
		{"leased, at the expiry", current, expiry, expiry},
		{"leased, after the expiry", current, expiry.Add(runstore.TimePrecision), expiry.Add(runstore.TimePrecision)},
		{"released", current.Ended(rules.Released), begun, begun},
		{"revoked", current.Ended(rules.Revoked), begun, begun},
	} {
		h := test.head
		h.RunnableAt = test.at
		if got := h.RunnableFrom(); !got.Equal(test.want) {
			t.Errorf("%s: runnable from %v, want %v", test.name, got, test.want)
		}
		if test.want.IsZero() {
			if h.Runnable(expiry.Add(time.Hour)) {
				t.Errorf("%s: runnable, want never", test.name)
			}
			continue
		}
		for i, offset := range instants {
			if got, want := h.Runnable(test.want.Add(offset)), i > 0; got != want {
				t.Errorf("%s: runnable %v from the first time: %t, want %t", test.name, offset, got, want)
			}
		}
	}
}
