package crossrun_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestTransfers moves units between runs, each of which is a lead and another
// lead's other run, by drivers that take the leases from each other, repeat what
// was lost and die anywhere. Whatever the order: the sum is kept, each transfer is
// there once on both runs or not at all, one that was acknowledged is there, and
// one that was refused is not.
func TestTransfers(t *testing.T) {
	t.Parallel()
	stories := uint64(1200)
	if testing.Short() {
		stories = 100
	}
	seen := map[runstore.Outcome]int{}
	for seed := range stories {
		transfers(t, seed, seen)
		if t.Failed() {
			t.Fatalf("in the story of seed %d", seed)
		}
	}
	t.Logf("transfers by outcome: %v", seen)
	for _, o := range []runstore.Outcome{runstore.Applied, runstore.NotApplied, runstore.Unknown} {
		if seen[o] == 0 {
			t.Errorf("no transfer was %v", o)
		}
	}
}

const units = 100

func transfers(t *testing.T, seed uint64, seen map[runstore.Outcome]int) {
	ctx := t.Context()
	random := rand.New(rand.NewPCG(seed, 1))
	accounts := []runstore.RunID{"a", "b", "c"}[:2+random.IntN(2)]
	var base runstore.RunStore = memory.New(nil).Open()
	if random.IntN(2) == 0 {
		base = forgetful{base}
	}
	create(t, base, accounts...)
	for _, id := range accounts {
		b := runstore.NewBatch(id, runstore.AtVersion("units", 0))
		b.Put("units", fmt.Append(nil, units))
		if _, err := base.Commit(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	told := map[string]runstore.Outcome{} // only one actor runs at a time
	leases := map[runstore.RunID]runstore.Lease{}
	s := schedule{choose: random.IntN, fault: func(*actor) fault {
		switch random.IntN(60) {
		case 0:
			return diesBefore
		case 1:
			return diesAfter
		case 2:
			return losesRequest
		case 3:
			return losesReply
		default:
			return noFault
		}
	}}
	for n := range 3 {
		name := fmt.Sprint("driver-", n)
		own := rand.New(rand.NewPCG(seed, 2+uint64(n)))
		s.add(name, base, func(g gated) { drive(t, g, name, own, accounts, leases, told) })
	}
	s.add("sweeper", base, func(g gated) {
		for range 2 {
			_, _ = crossrun.Sweep(ctx, g, accounts[random.IntN(len(accounts))])
		}
	})
	s.run()

	for _, id := range accounts {
		hold(t, base, id)
	}
	sum, times := 0, map[string]int{}
	for _, id := range accounts {
		sum += balance(t, base, id)
		for event, err := range runstore.Journal(ctx, base, id, 1) {
			if err != nil {
				t.Fatal(err)
			}
			times[string(event.Data)]++
		}
		if _, err := crossrun.Sweep(ctx, base, id); err != nil {
			t.Error(err)
		}
	}
	clean(t, base, accounts...)
	if want := units * len(accounts); sum != want {
		t.Errorf("the sum of the units is %d, want %d", sum, want)
	}
	for name, outcome := range told {
		seen[outcome]++
		want := map[runstore.Outcome]int{runstore.Applied: 2, runstore.NotApplied: 0}
		if n, known := want[outcome]; known && times[name] != n || times[name] != 0 && times[name] != 2 {
			t.Errorf("transfer %s was %v to its driver, and is %d times in the journals", name, outcome, times[name])
		}
	}
}

// drive takes runs over, or shares the lease of whoever took them last, and
// transfers units from them, a few times.
func drive(t *testing.T, g gated, name string, random *rand.Rand, accounts []runstore.RunID,
	leases map[runstore.RunID]runstore.Lease, told map[string]runstore.Outcome) {
	ctx := t.Context()
	for round := range 2 {
		pick := random.Perm(len(accounts))
		from, to := accounts[pick[0]], accounts[pick[1]]
		lease, ok := leases[from]
		if !ok || random.IntN(2) == 0 {
			granted, _, err := crossrun.Acquire(ctx, g, preempt(from, runstore.Owner(name)))
			if err != nil {
				continue
			}
			lease = granted.Lease
			leases[from] = lease
		}
		for n := range 2 {
			transfer := fmt.Sprintf("%s/%d/%d", name, round, n)
			lead, ok := move(t, g, from, transfer, -1, lease.Fence())
			other, too := move(t, g, to, transfer, +1)
			if !ok || !too {
				break
			}
			if random.IntN(2) == 0 {
				lead.ID = runstore.BatchID(transfer)
			}
			told[transfer] = runstore.Unknown
			_, err := crossrun.Commit(ctx, g, lead, other)
			for lead.ID != "" && runstore.OutcomeOf(err) == runstore.Unknown && !g.a.dead {
				_, repeated := crossrun.Commit(ctx, g, lead, other)
				if errors.Is(repeated, runstore.ErrUnavailable) { // it says nothing of the first call
					break
				}
				if err = repeated; errors.Is(err, runstore.ErrFenced) {
					break
				}
			}
			told[transfer] = runstore.OutcomeOf(err)
			if errors.Is(err, runstore.ErrFenced) {
				break
			}
		}
	}
}

// move is one run's part of a transfer.
func move(t *testing.T, g gated, id runstore.RunID, transfer string, by int, guards ...runstore.Guard) (runstore.Batch, bool) {
	found, err := g.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{"units"}})
	if err != nil || len(found) == 0 {
		return runstore.Batch{}, false
	}
	b := runstore.NewBatch(id, runstore.AtVersion("units", found[0].Version), guards...)
	b.Append("transfer", []byte(transfer))
	b.Put("units", fmt.Append(nil, number(t, found[0].Value)+by))
	return b, true
}

func balance(t *testing.T, s runstore.RunStore, id runstore.RunID) int {
	t.Helper()
	found, err := s.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: []runstore.RecordKey{"units"}})
	if err != nil || len(found) != 1 {
		t.Fatalf("%d records, %v", len(found), err)
	}
	return number(t, found[0].Value)
}

func number(t *testing.T, text []byte) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(string(text), &n); err != nil {
		t.Error(err)
	}
	return n
}
