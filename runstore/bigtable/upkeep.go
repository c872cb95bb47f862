package bigtable

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// upkeep is background work of a handle: it scans for orphans, and retires marks (orphanscan.go). Each of the two has
// a goroutine, so neither delays the other.
//
// The marks are spread over 16 shards, and a handle scans the shards that it has claimed. So the work does
// not grow with the number of handles. All claims are in one cell, which handles replace by compare-and-swap:
// for each shard the handle that claims it, and a beat that this handle changes at each scan. A claim is free
// when its beat has not changed for claimTTL, measured on the clock of the handle that reads it. Claims are
// no leases: they save work, and no guarantee depends on them, because two handles may scan one shard at the
// same time.
type upkeep struct {
	store    *engine
	id       uint64        // of the handle, in its claims
	toRetire pendingRuns   // runs that the handle has purged or found idle, whose marks are to be retired
	claimed  atomic.Uint32 // the shards that the handle has claimed: a bit for each

	// The goroutine of the scans owns the following.
	scans    int
	observed [shards]observedClaim
	renewed  localclock.Reading // when the claims were renewed last
	renewal  time.Duration      // how long after that a scan renews them again
	// lacks maps each run whose row does not say that the feed has all its events to its last event, as the
	// present scan has read it. lacked is that map of the previous scan.
	lacks, lacked map[runGeneration]int64
}

// claim names the handle that scans a shard of the marks. The zero claim is no claim.
type claim struct{ by, beat uint64 }

// observedClaim is the claim that this handle last read, and when it first read that claim.
type observedClaim struct {
	claim
	since localclock.Reading
}

const (
	// claimTTL is 10 s, two and a half average scans: the longest pause between two scans is one and
	// a half.
	claimTTL = 5 * orphanScanEvery / 2
	// claimedAtOnce is how many shards a handle claims in one scan: half of them, so that handles that
	// start at the same time share the shards.
	claimedAtOnce = shards / 2
	// compactEvery is after how many scans the handle that claimed the first shard compacts some of the
	// feed's log: every 32 s on average.
	compactEvery = 8
	// renewClaimsEvery is how often a scan renews its claims: four times in claimTTL.
	renewClaimsEvery = claimTTL / 4
	// maxToRetire bounds the queue of marks to retire. Later scans find the others.
	maxToRetire = 10_000
)

// errClaimLost ends the work on a run whose shard another handle has claimed.
var errClaimLost = errors.New("bigtable: another handle has claimed the marks")

func newUpkeep(s *engine) *upkeep {
	return &upkeep{store: s, id: rand.Uint64() | 1, toRetire: newPendingRuns(maxToRetire), renewal: renewClaimsEvery}
}

// scanLoop scans the claimed shards for orphans, until the handle is closed. A handle without a claim looks
// for free shards half as often.
func (u *upkeep) scanLoop() {
	timer := time.NewTimer(rand.N(orphanScanEvery))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-u.store.draining:
			return // its claims are free after claimTTL
		}
		every := orphanScanEvery
		if u.scanClaimed(u.store.stopped) == 0 {
			every *= 2
		}
		timer.Reset(every/2 + rand.N(every))
	}
}

// scanClaimed scans the shards that the handle has claimed and returns their number.
func (u *upkeep) scanClaimed(ctx context.Context) int {
	mine, err := u.updateClaims(ctx, true)
	if err != nil && ctx.Err() == nil {
		u.store.opts.Logger.Warn("bigtable: the marks cannot be claimed", "error", err)
	}
	if err == nil {
		u.setClaimed(mine)
	}
	if len(mine) == 0 {
		return 0
	}
	err = u.store.orphanScan(ctx, mine)
	if u.scans++; err == nil && mine[0] == 0 && u.scans%compactEvery == 0 {
		err = u.store.compactNext(ctx, hashed(be64(rand.Int64())))
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errStopped) {
		u.store.opts.Logger.Warn("bigtable: the orphan scan failed", "error", err)
	}
	return len(mine)
}

// setClaimed records the shards that the handle has claimed just now.
func (u *upkeep) setClaimed(mine []int) {
	all := uint32(0)
	for _, shard := range mine {
		all |= 1 << shard
	}
	u.claimed.Store(all)
	u.renewed = u.store.clock.local.Read()
}

// keepClaims renews the claims of a long scan when that is due. If it cannot renew them, the scan goes on: no
// guarantee depends on claims.
func (u *upkeep) keepClaims(ctx context.Context) {
	if u.store.clock.local.Since(u.renewed) < u.renewal {
		return
	}
	if mine, err := u.updateClaims(ctx, false); err == nil {
		u.setClaimed(mine)
	}
}

// retireLoop retires the marks of idle and purged runs, until the handle is closed. The retirement of a large run may
// take minutes; meanwhile the scans go on, and renew the claims.
func (u *upkeep) retireLoop() {
	for {
		select {
		case <-u.toRetire.wake:
			u.retirePending(u.store.stopped)
		case <-u.store.draining:
			return
		}
	}
}

// retirePending retires the queued marks, one after another. After an error a later scan queues the mark again.
func (u *upkeep) retirePending(ctx context.Context) {
	for id, more := u.toRetire.next(); more; id, more = u.toRetire.next() {
		err := u.store.retireMark(ctx, id, func() error { return u.mayRetire(id) })
		if errors.Is(err, errClaimLost) || errors.Is(err, errStopped) {
			continue
		}
		if err := u.store.unlessSkipped(id, err); err != nil && ctx.Err() == nil {
			u.store.opts.Logger.Warn("bigtable: the orphan scan of an idle run failed", "run", string(id), "error", err)
		}
	}
}

// mayRetire returns errStopped once Close has begun, and errClaimLost if the handle has not claimed the shard of
// the run's mark: retirements of two handles would compete, because each replaces the revision that the other
// relies on.
func (u *upkeep) mayRetire(id runstore.RunID) error {
	switch {
	case u.store.isClosed():
		return errStopped
	case u.claimed.Load()&(1<<shardOf(string(id))[0]) == 0:
		return errClaimLost
	}
	return nil
}

// updateClaims renews the claims of the handle, and claims free shards if more is set. It returns the handle's
// shards, in order.
func (u *upkeep) updateClaims(ctx context.Context, more bool) (mine []int, err error) {
	var stored []byte
	err = u.store.readList(ctx, []string{kindClaims}, latest(column(familyOther, "")), func(r bigtable.Row) error {
		stored = cell(r, familyOther, "")
		return nil
	})
	if err != nil {
		return nil, err
	}
	now, claimed := u.store.clock.local.Read(), 0
	next := make([]byte, 0, shards*16)
	var had []int
	for shard := range shards {
		var c claim
		if len(stored) == shards*16 {
			c = claim{binary.BigEndian.Uint64(stored[16*shard:]), binary.BigEndian.Uint64(stored[16*shard+8:])}
		}
		if m := &u.observed[shard]; m.claim != c {
			*m = observedClaim{c, now}
		}
		free := c.by == 0 || c.by != u.id && u.store.clock.local.Since(u.observed[shard].since) > claimTTL
		if c.by == u.id || free && more && claimed < claimedAtOnce {
			if c.by == u.id {
				had = append(had, shard)
			} else {
				claimed++
			}
			c = claim{u.id, c.beat + 1}
			mine = append(mine, shard)
		}
		next = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(next, c.by), c.beat)
	}
	if string(next) == string(stored) {
		return nil, nil
	}
	set := bigtable.NewMutation()
	set.Set(familyOther, "", 0, next)
	m, wants := ifCell(familyOther, "", stored, append(slices.Clip(stored), 0), set)
	var matched bool
	bound, cancel := context.WithTimeout(ctx, u.store.attemptTimeout)
	defer cancel()
	err = u.store.table.Apply(bound, kindClaims, m, bigtable.GetCondMutationResult(&matched))
	if err != nil || matched != wants { // another handle wrote first: the next scan renews the claims
		return had, err
	}
	return mine, nil
}
