package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// loads returns how many shards each member owns, and how many have moved.
func loads(t *testing.T, old, owners []string, members []string) (least, most, moved int) {
	t.Helper()
	count := map[string]int{}
	for shard, owner := range owners {
		if _, ok := slices.BinarySearch(members, owner); !ok {
			t.Fatalf("shard %d is owned by %q, which is not one of %v", shard, owner, members)
		}
		count[owner]++
		if old != nil && old[shard] != owner {
			moved++
		}
	}
	least = len(owners)
	for _, m := range members {
		least, most = min(least, count[m]), max(most, count[m])
	}
	return least, most, moved
}

// Random changes of one member at a time: the loads differ by at most one, and no more shards move
// than have to.
func TestBalance(t *testing.T) {
	for range 50 {
		n := 1 + rand.N(200)
		members := []string{"first"}
		owners := balance(nil, n, members)
		for range 40 {
			old, k := owners, len(members)
			if k > 1 && rand.N(2) == 0 {
				i := rand.N(k)
				gone := members[i]
				members = slices.Delete(slices.Clone(members), i, i+1)
				owners = balance(old, n, members)
				orphans := 0
				for _, owner := range old {
					if owner == gone {
						orphans++
					}
				}
				_, _, moved := loads(t, old, owners, members)
				if moved != orphans || moved > (n+k-1)/k {
					t.Fatalf("%d of %d shards moved when one of %d members with %d shards left", moved, n, k, orphans)
				}
			} else {
				members = append(slices.Clone(members), fmt.Sprint("member ", rand.Int()))
				slices.Sort(members)
				owners = balance(old, n, members)
				if _, _, moved := loads(t, old, owners, members); moved > n/(k+1) {
					t.Fatalf("%d of %d shards moved when one joined %d members", moved, n, k)
				}
			}
			least, most, _ := loads(t, old, owners, members)
			if most-least > 1 {
				t.Fatalf("%d shards of %d members: loads from %d to %d", n, len(members), least, most)
			}
			if again := balance(owners, n, members); !slices.Equal(again, owners) {
				t.Fatal("an assignment that fits was changed")
			}
		}
	}
}

// Without an assignment, members that return get most of their shards back: the weights decide.
func TestBalanceIsRendezvousHashing(t *testing.T) {
	const n = 3000
	_, _, moved := loads(t, balance(nil, n, []string{"a", "b", "c"}), balance(nil, n, []string{"a", "b", "c", "d"}), []string{"a", "b", "c", "d"})
	if moved > n/3 { // n/4 move to the new member, and few others because the loads are bounded
		t.Errorf("%d of %d shards moved, want about %d", moved, n, n/4)
	}
	t.Logf("%d of %d shards moved by computing anew, %d have to", moved, n, n/4)
}

// lossy loses the replies of its first commits.
type lossy struct {
	runstore.RunStore
	lose int
}

func (s *lossy) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c, err := s.RunStore.Commit(ctx, b)
	if s.lose > 0 && err == nil {
		s.lose--
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome}
	}
	return c, err
}

// Of two members that change the same assignment one succeeds, also if the reply to it is lost.
func TestAssignIsACompareAndSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(&lossy{memory.New(nil).Open(), 2}, "workers", nil)
		if err != nil {
			t.Fatal(err)
		}
		first, err := g.assign(t.Context(), "a", Assignment{}, 4, []string{"a", "b"})
		if err != nil || first.Generation != 1 {
			t.Fatalf("got %+v, %v; want generation 1", first, err)
		}
		if _, err := g.assign(t.Context(), "b", Assignment{}, 4, []string{"b"}); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("a second change of the same assignment: %v, want ErrConflict", err)
		}
		if got, err := g.Assignment(t.Context()); err != nil || got.Generation != 1 || !slices.Equal(got.Owners, first.Owners) {
			t.Errorf("assignment %+v, %v; want %+v", got, err, first)
		}
	})
}

// A member is added or removed once it has differed from the assignment for long enough without a break.
func TestHysteresis(t *testing.T) {
	h := hysteresis{time.Second, map[string]time.Time{}}
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		at       time.Duration
		assigned string
		present  string
		want     string
		next     time.Duration
	}{
		{0, "", "a b", "", time.Second},
		{400 * time.Millisecond, "", "a", "", 600 * time.Millisecond},
		{600 * time.Millisecond, "", "a b", "", 400 * time.Millisecond},
		{time.Second, "", "a b", "a", 600 * time.Millisecond}, // the break of b counts
		{1500 * time.Millisecond, "a b", "a b", "a b", noBound},
		{2 * time.Second, "a b", "b", "a b", time.Second},
		{2900 * time.Millisecond, "a b", "a b", "a b", noBound}, // a is back
		{3000 * time.Millisecond, "a b", "b", "a b", time.Second},
		{3900 * time.Millisecond, "b", "b", "b", noBound}, // another member was faster: nothing to undo
		{4000 * time.Millisecond, "a b c", "b", "a b c", time.Second},
		{4500 * time.Millisecond, "a b c", "b c d", "a b c", 500 * time.Millisecond},
		{5000 * time.Millisecond, "a b c", "b c d", "b c", 500 * time.Millisecond},
		{5500 * time.Millisecond, "a b c", "b c d", "b c d", noBound},
		{5600 * time.Millisecond, "b c d", "b c d", "b c d", noBound},
		{5700 * time.Millisecond, "b c d", "b c", "b c d", time.Second},
		{-time.Hour, "b c d", "b c", "b c d", time.Second}, // the clock was set back
		{-time.Hour + time.Second, "b c d", "b c", "b c", noBound},
		{-time.Hour + time.Second, "b c", "b c", "b c", noBound},
	} {
		present := map[string]bool{}
		for _, name := range strings.Fields(step.present) {
			present[name] = true
		}
		want, next := h.observe(start.Add(step.at), strings.Fields(step.assigned), present)
		if got := strings.Join(want, " "); got != step.want || next != step.next {
			t.Errorf("after %v: %q, next in %v; want %q and %v", step.at, got, next, step.want, step.next)
		}
	}
	if len(h.since) != 0 {
		t.Errorf("members are remembered that do not differ from the assignment: %v", h.since)
	}
}

// A dead member is removed within reapSpread of the first sight, also if the store clock was set back since.
func TestReapScheduleWithAClockSetBack(t *testing.T) {
	s := memory.New(nil).Open()
	defer func() { _ = s.Close() }()
	g, err := New(s, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	schedule := reapSchedule{}
	v := view{at: time.Unix(10_000, 0), dead: []dead{{name: "a", head: runstore.Run{ID: g.MemberRun("a")}}}}
	for range 2 {
		if next := g.reap(t.Context(), schedule, v); next > reapSpread {
			t.Errorf("the clock is at %v, and the next member is removed in %v, want at most %v", v.at, next, reapSpread)
		}
		v.at = v.at.Add(-time.Hour)
	}
}
