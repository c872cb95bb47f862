package bigtable

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// upkeep is the background work of a handle other than the feed and the deletions: it seals long runs
// (seal.go), and scans for orphans (orphanscan.go). Each of the two has a goroutine, so neither delays the
// other.
//
// The marks are spread over 16 shards, and a handle scans the shards that it has claimed. So the work does
// not grow with the number of handles. All claims are in one cell, which handles replace by compare-and-swap:
// for each shard the handle that claims it, and a beat that this handle changes at each scan. A claim is free
// when its beat has not changed for claimTTL, measured on the clock of the handle that reads it. Claims are
// no leases: they save work, and no guarantee depends on them, because two handles may scan one shard at the
// same time.
type upkeep struct {
	store  *engine
	id     uint64      // of the handle, in its claims
	toSeal pendingRuns // runs with many events in their rows

	// The goroutine of the scans owns the following.
	scans    int
	observed [shards]observedClaim
	claimed  []int              // the shards that the present scan has claimed
	renewed  localclock.Reading // when the claims were renewed last
	renewal  time.Duration      // how long after that a scan renews them again
	// lacks maps each run whose row does not say that the feed has all its events to its last event, as the
	// present scan has read it. lacked is that map of the previous scan.
	lacks, lacked map[runGeneration]int64
	idle          []mark                  // of runs that scans have found idle, to be retired
	isQueued      map[runstore.RunID]bool // the runs of idle
	scanBegan     localclock.Reading      // when the present scan began
	retiring      *retirement             // that the last scan has left unfinished, or nil
	retireTime    time.Duration           // how long a scan retires marks
	retiresSince  localclock.Reading      // when the present scan began to retire marks
	retireBound   time.Duration           // how long the present scan retires marks
	retired       time.Duration           // how long the last scan has retired marks
	unfinished    bool                    // the last scan has left marks to retire
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
	// retireTime is how long a scan retires marks at least. 2 s: the shortest pause between two scans.
	retireTime = orphanScanEvery / 2
	// maxIdle bounds the queue of marks to retire: many more than one scan can retire.
	maxIdle = 10_000
)

// claimUse is what updateClaims does with claims.
type claimUse int

const (
	claimMore     claimUse = iota // renew the handle's claims, and claim free shards
	renewClaims                   // renew the handle's claims
	releaseClaims                 // release the handle's claims
)

// errClaimLost ends the work on a run whose shard another handle has claimed.
var errClaimLost = errors.New("bigtable: another handle has claimed the marks")

func newUpkeep(s *engine) *upkeep {
	return &upkeep{store: s, id: rand.Uint64() | 1, toSeal: newPendingRuns(), renewal: renewClaimsEvery, isQueued: map[runstore.RunID]bool{}, retireTime: max(retireTime, s.opts.bound)}
}

// sealLoop seals runs that have become long, until the handle is closed.
func (u *upkeep) sealLoop() {
	for {
		select {
		case <-u.toSeal.wake:
			u.sealPending(u.store.stopped)
		case <-u.store.draining:
			return
		}
	}
}

// sealPending seals the pending runs, and queues those again that it could not seal.
func (u *upkeep) sealPending(ctx context.Context) {
	for _, id := range u.toSeal.take() {
		err := u.store.prepareSeal(ctx, id)
		if err == nil || u.store.skipDamaged(id, err) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		u.store.opts.Logger.Warn("bigtable: a long run waits to be sealed", "run", string(id), "error", err)
		u.toSeal.add(id)
		pause(u.store.draining, outcome.MaxPause)
	}
}

// scanLoop scans the claimed shards for orphans, until the handle is closed. A handle without a claim looks
// for free shards half as often. A scan that has left marks to retire is followed by the next at once.
func (u *upkeep) scanLoop() {
	timer := time.NewTimer(rand.N(orphanScanEvery))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-u.store.draining:
			ctx, cancel := context.WithTimeout(u.store.stopped, u.store.closeGrace)
			defer cancel()
			u.stopRetiring()
			_, _ = u.updateClaims(ctx, releaseClaims) // if it fails, the claims are free after claimTTL
			return
		}
		every := orphanScanEvery
		if u.scanClaimed(u.store.stopped) == 0 {
			every *= 2
		}
		wait := every/2 + rand.N(every) - u.retired
		if u.unfinished {
			wait = 0
		}
		timer.Reset(wait)
	}
}

// scanClaimed scans the shards that the handle has claimed and returns their number.
func (u *upkeep) scanClaimed(ctx context.Context) int {
	mine, err := u.updateClaims(ctx, claimMore)
	if err != nil && ctx.Err() == nil {
		u.store.opts.Logger.Warn("bigtable: the marks cannot be claimed", "error", err)
	}
	if u.retired, u.unfinished = 0, false; len(mine) == 0 {
		if err == nil { // other handles have claimed all shards
			u.stopRetiring()
		}
		return 0
	}
	u.claimed, u.renewed = mine, u.store.clock.local.Read()
	err = u.store.orphanScan(ctx, mine)
	if u.scans++; err == nil && mine[0] == 0 && u.scans%compactEvery == 0 {
		err = u.store.compactNext(ctx, hashed(be64(rand.Int64())))
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errStopped) {
		u.store.opts.Logger.Warn("bigtable: the orphan scan failed", "error", err)
	}
	return len(mine)
}

// retirement is the work on the mark of an idle run. It is a coroutine: a scan may leave it between two requests,
// and the next scan resumes it there.
type retirement struct {
	run    runstore.RunID
	resume func() (struct{}, bool) // runs it, and reports whether it is unfinished
	stop   func()
	err    error // of the retirement when it has ended
}

// addIdle queues the mark of an idle run.
func (u *upkeep) addIdle(m mark) {
	if len(u.idle) < maxIdle && !u.isQueued[m.run] { // later scans find the others
		u.idle, u.isQueued[m.run] = append(u.idle, m), true
	}
}

// retireMarks retires the queued marks of idle runs. It ends after retireTime, or after as long as the scan
// has taken if that is longer, because the events of handles that died wait for the next scan. The retirement
// of a large run may take minutes: retireMarks leaves it between two requests, and the next scan resumes it.
// A mark that could not be retired is queued again by the next scan, behind all others.
func (u *upkeep) retireMarks(ctx context.Context) {
	u.retiresSince = u.store.clock.local.Read()
	if u.retireBound = u.retireTime; u.retireTime > 0 { // 0 in tests: as briefly as possible
		u.retireBound = max(u.retireTime, u.retiresSince.Sub(u.scanBegan))
	}
	for first := true; u.retiring != nil || len(u.idle) > 0 && (first || !u.isLate()); first = false {
		if u.retiring == nil {
			u.retiring, u.idle = u.newRetirement(ctx, u.idle[0]), u.idle[1:]
		}
		r := u.retiring
		if _, unfinished := r.resume(); unfinished {
			break
		}
		u.retiring = nil
		delete(u.isQueued, r.run)
		if errors.Is(r.err, errClaimLost) || errors.Is(r.err, errStopped) {
			continue
		}
		if err := u.store.unlessSkipped(r.run, r.err); err != nil && ctx.Err() == nil {
			u.store.opts.Logger.Warn("bigtable: the orphan scan of an idle run failed", "run", string(r.run), "error", err)
		}
	}
	u.retired, u.unfinished = u.store.clock.local.Since(u.retiresSince), u.retiring != nil || len(u.idle) > 0
}

// isLate reports whether the present scan has retired marks for as long as it may.
func (u *upkeep) isLate() bool { return u.store.clock.local.Since(u.retiresSince) >= u.retireBound }

// newRetirement returns the retirement of a mark, which begins when it is resumed.
func (u *upkeep) newRetirement(ctx context.Context, m mark) *retirement {
	r := &retirement{run: m.run}
	r.resume, r.stop = iter.Pull(func(yield func(struct{}) bool) {
		keep := func() error {
			if u.isLate() && !yield(struct{}{}) || u.store.isClosed() {
				return errStopped
			}
			return u.keepClaim(ctx, int(m.key()[1]))
		}
		if r.err = keep(); r.err == nil {
			r.err = u.store.retireMark(ctx, m.run, keep)
		}
	})
	return r
}

// stopRetiring ends the retirement that the last scan has left unfinished. A later scan begins it anew.
func (u *upkeep) stopRetiring() {
	if u.retiring != nil {
		u.retiring.stop()
		delete(u.isQueued, u.retiring.run)
		u.retiring = nil
	}
}

// keepClaim renews the claims of a long scan when that is due. It returns errClaimLost if another handle has
// claimed the shard. If it cannot renew the claims, the scan goes on: no guarantee depends on them.
func (u *upkeep) keepClaim(ctx context.Context, shard int) error {
	if now := u.store.clock.local.Read(); u.store.clock.local.Since(u.renewed) >= u.renewal {
		mine, err := u.updateClaims(ctx, renewClaims)
		if err != nil {
			return nil
		}
		u.claimed, u.renewed = mine, now
	}
	if !slices.Contains(u.claimed, shard) {
		return errClaimLost
	}
	return nil
}

// updateClaims renews, adds or releases claims of the handle. It returns the handle's shards, in order.
func (u *upkeep) updateClaims(ctx context.Context, use claimUse) (mine []int, err error) {
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
		switch {
		case c.by == u.id && use == releaseClaims:
			c = claim{}
		case c.by == u.id, free && use == claimMore && claimed < claimedAtOnce:
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
	m, wants := bigtable.NewCondMutation(latest(column(familyOther, "")), nil, set), false
	if stored != nil {
		same := bigtable.ChainFilters(column(familyOther, ""), bigtable.LatestNFilter(1), bigtable.ValueRangeFilter(stored, append(stored[:len(stored):len(stored)], 0)))
		m, wants = bigtable.NewCondMutation(same, set, nil), true
	}
	var matched bool
	bound, cancel := context.WithTimeout(ctx, u.store.attemptTimeout)
	defer cancel()
	err = u.store.table.Apply(bound, kindClaims, m, bigtable.GetCondMutationResult(&matched))
	if err != nil || matched != wants { // another handle wrote first: the next scan renews the claims
		return had, err
	}
	return mine, nil
}
