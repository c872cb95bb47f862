package group

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Assignment says which member owns which shard. It is a record of the group's run.
type Assignment struct {
	// Generation counts the changes of the assignment; 0 means that there is none yet.
	Generation runstore.Version
	// Owners has the name of the owner of each shard. An owner may have left or died since.
	Owners []string

	members []string // those that share the shards, by name
}

// Rebalanced is the data of an event [EventRebalanced].
type Rebalanced struct {
	Group string `json:"group"`
	// By is the member that committed the change.
	By string `json:"by"`
	// Shards is the number of shards, Members the number of members that share them.
	Shards  int `json:"shards"`
	Members int `json:"members"`
	// Moved is the number of shards with another owner than before.
	Moved int `json:"moved"`
}

// assignmentRecord is the value of the record of an assignment.
type assignmentRecord struct {
	// Members are ordered by name.
	Members []string `json:"members"`
	// Owners has the index in Members of the owner of each shard.
	Owners []int `json:"owners"`
}

// assignmentKey is the key of that record in the group's run: the summary, which GetRun returns.
const assignmentKey = runstore.SummaryKey

// Assignment returns which member owns which shard. It costs one read; the errors are those of the
// store. The assignment is intent, for observers and for routing: only the lease of a shard's run
// decides who writes to it.
func (g *Group) Assignment(ctx context.Context) (Assignment, error) {
	head, err := g.store.GetRun(ctx, g.Run())
	switch {
	case errors.Is(err, runstore.ErrNotFound):
		return Assignment{}, nil
	case err != nil:
		return Assignment{}, err
	case head.Summary.Version == 0:
		return Assignment{}, nil
	}
	var r assignmentRecord
	if err := json.Unmarshal(head.Summary.Value, &r); err != nil {
		return Assignment{}, &runstore.CorruptError{Run: g.Run(), Cause: err}
	}
	a := Assignment{Generation: head.Summary.Version, Owners: make([]string, len(r.Owners)), members: r.Members}
	for shard, i := range r.Owners {
		if i < 0 || i >= len(r.Members) {
			return Assignment{}, &runstore.CorruptError{Run: g.Run(), Cause: errors.New("the owner of a shard is not a member")}
		}
		a.Owners[shard] = r.Members[i]
	}
	return a, nil
}

// assign commits the assignment of n shards to members, unless the assignment has changed since old
// was read; the error then matches runstore.ErrConflict.
func (g *Group) assign(ctx context.Context, by string, old Assignment, n int, members []string) (Assignment, error) {
	next := Assignment{Owners: balance(old.Owners, n, members), members: members}
	r := assignmentRecord{Members: members, Owners: make([]int, n)}
	moved := 0
	for shard, owner := range next.Owners {
		r.Owners[shard], _ = slices.BinarySearch(members, owner)
		if shard >= len(old.Owners) || owner != old.Owners[shard] {
			moved++
		}
	}
	b := runstore.NewBatch(g.Run(), runstore.AtVersion(assignmentKey, old.Generation))
	b.Append(EventRebalanced, encode(Rebalanced{Group: g.name, By: by, Shards: n, Members: len(members), Moved: moved}))
	b.Put(assignmentKey, encode(r))
	done, err := g.commit(ctx, b)
	if errors.Is(err, runstore.ErrNotFound) {
		if err = g.create(ctx, g.Run()); err == nil {
			done, err = g.commit(ctx, b)
		}
	}
	if err != nil {
		return old, err
	}
	next.Generation = done.Versions[0]
	return next, nil
}

// balance assigns n shards to members, which are ordered by name and not empty: rendezvous hashing
// with bounded loads.
//
//   - Every member owns n/k shards, rounded up or down.
//   - No assignment with these loads moves fewer shards from their owners in old. So after the loss of
//     one of k members, only its shards move: at most n/k, rounded up. After a join only those move
//     that the new member gets.
//   - A shard without an owner goes to the member of the highest weight that has room.
//
// Plain rendezvous hashing needs no record of the assignment, but does not bound the loads, nor what
// the loss of a member moves: a member may own much more than n/k shards.
func balance(old []string, n int, members []string) []string {
	owned := make(map[string][]int, len(members))
	for _, m := range members {
		owned[m] = nil
	}
	owners := make([]string, n)
	for shard := range min(n, len(old)) {
		if _, member := owned[old[shard]]; member {
			owners[shard] = old[shard]
			owned[old[shard]] = append(owned[old[shard]], shard)
		}
	}
	// The members that own most may own one shard more than the others.
	byLoad := slices.Clone(members)
	slices.SortStableFunc(byLoad, func(a, b string) int { return cmp.Compare(len(owned[b]), len(owned[a])) })
	room := make(map[string]int, len(members))
	for i, m := range byLoad {
		quota := n / len(members)
		if i < n%len(members) {
			quota++
		}
		mine := owned[m]
		slices.SortStableFunc(mine, func(a, b int) int { return cmp.Compare(weight(m, b), weight(m, a)) })
		for _, shard := range mine[min(quota, len(mine)):] {
			owners[shard] = "" // gives up those of the lowest weight
		}
		room[m] = quota - min(quota, len(mine))
	}
	for shard, owner := range owners {
		if owner != "" {
			continue
		}
		best, most := "", uint64(0)
		for _, m := range members {
			if w := weight(m, shard); room[m] > 0 && (best == "" || w > most) {
				best, most = m, w
			}
		}
		owners[shard] = best
		room[best]--
	}
	return owners
}

// weight is the weight of a member for a shard in rendezvous hashing.
func weight(member string, shard int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte{byte(shard), byte(shard >> 8)}) // a hash returns no error
	_, _ = h.Write([]byte(member))
	// The finalizer of MurmurHash3: the low bits of FNV-1a do not depend on all bits of the input.
	w := h.Sum64()
	w = (w ^ w>>33) * 0xff51afd7ed558ccd
	w = (w ^ w>>33) * 0xc4ceb9fe1a85ec53
	return w ^ w>>33
}

// hysteresis delays changes of the assignment: a member is added or removed once it has been present or
// absent for long enough without a break. Members are independent: one that comes and goes delays no
// other. The state is relative to the assignment, not to what this process saw before, so members whose
// views differ for a moment do not undo each other's changes.
type hysteresis struct {
	least time.Duration
	since map[string]time.Time // when a member began to differ from the assignment, on the store clock
}

// observe records which members are present at a time of the store clock. It returns the members that
// should be assigned, by name, and the time until a further one could be added or removed.
func (h *hysteresis) observe(at time.Time, assigned []string, present map[string]bool) (want []string, next time.Duration) {
	set, differing := map[string]bool{}, map[string]bool{}
	for _, name := range assigned {
		set[name] = true
		if !present[name] {
			differing[name] = true
		}
	}
	for name := range present {
		if !set[name] {
			differing[name] = true
		}
	}
	for name := range h.since {
		if !differing[name] {
			delete(h.since, name)
		}
	}
	next = noBound
	for name := range differing {
		since, began := h.since[name]
		if !began || since.After(at) { // the clock was set back
			since, h.since[name] = at, at
		}
		if left := since.Add(h.least).Sub(at); left > 0 {
			next = min(next, left)
		} else if present[name] {
			set[name] = true
		} else {
			delete(set, name)
		}
	}
	return slices.Sorted(maps.Keys(set)), next
}
