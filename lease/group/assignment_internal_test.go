package group

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
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

// A name changes its state once it has been present or absent for long enough without a break.
func TestHysteresis(t *testing.T) {
	h := newHysteresis(time.Second)
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		at      time.Duration
		present []string
		stable  []string
		next    time.Duration
	}{
		{0, []string{"a", "b"}, nil, time.Second},
		{400 * time.Millisecond, []string{"a"}, nil, 600 * time.Millisecond},
		{600 * time.Millisecond, []string{"a", "b"}, nil, 400 * time.Millisecond},
		{time.Second, []string{"a", "b"}, []string{"a"}, 600 * time.Millisecond},
		{1600 * time.Millisecond, []string{"a", "b"}, []string{"a", "b"}, noBound},
		{2 * time.Second, []string{"b"}, []string{"a", "b"}, time.Second},
		{2900 * time.Millisecond, []string{"a", "b"}, []string{"a", "b"}, noBound},
		{3000 * time.Millisecond, []string{"b"}, []string{"a", "b"}, time.Second},
		{4000 * time.Millisecond, []string{"b"}, []string{"b"}, noBound},
		{4001 * time.Millisecond, nil, []string{"b"}, time.Second},
		{9000 * time.Millisecond, nil, nil, noBound},
	} {
		present := map[string]bool{}
		for _, name := range step.present {
			present[name] = true
		}
		next := h.observe(start.Add(step.at), present)
		if got := sortedKeys(h.stable); !slices.Equal(got, step.stable) || next != step.next {
			t.Errorf("after %v: %v, next in %v; want %v and %v", step.at, got, next, step.stable, step.next)
		}
	}
	if len(h.since) != 0 {
		t.Errorf("names are remembered that are neither present nor stable: %v", h.since)
	}
}
