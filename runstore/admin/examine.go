package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// ScratchRun is the run that [Examination] writes to. It is unlisted, has records and no events, so
// no index and no feed contains it, and it is purged at the end: its token stays, as that of every
// purged run.
const ScratchRun runstore.RunID = "tapestore/doctor"

const (
	// samples is how often an operation is measured. 100: its p99 is the second slowest.
	samples = 100
	// sampling bounds the measurements of one operation, 10 s, where a store is slow.
	sampling = 10 * time.Second
	// skew is the difference of clocks that is worth a warning, 1 s: no guarantee depends on it
	// (I7), but times in logs of the hosts and of the store no longer match.
	skew = time.Second
	// slowNow and slowCommit are the p99 that are worth a warning. 250 ms and 1 s: heartbeats go
	// out a third of a TTL before the expiry, which is 10 s or more, and retries take several round
	// trips.
	slowNow    = 250 * time.Millisecond
	slowCommit = time.Second
	// cleanup bounds, 10 s, what is still done after the context has ended: the purge of the scratch
	// run, the release of a lease, the record of an end.
	cleanup = 10 * time.Second
)

// Examination checks a store.
type Examination struct {
	// URL is the store's.
	URL runstore.URL
	// Open opens the store. Unless Write is set, it should open it so that the engine creates,
	// migrates and sets nothing.
	Open func(ctx context.Context) (runstore.RunStore, error)
	// Write creates [ScratchRun], measures commits to it, checks that a fence is refused after its
	// grant has ended, and purges the run. Without Write the examination only reads; on Bigtable a
	// reading of the clock writes to a row of its own.
	Write bool
	// Clock returns this host's time of day; nil means time.Now.
	Clock func() time.Time
}

// Run returns what the adapter finds about what the store runs on, and then what the store itself
// shows: the version, the epochs, the clock, latencies. It does not open a store about which the
// adapter has found a failure, or that would change by being opened. It returns what it found when
// ctx ends, and everything that goes wrong is a finding.
func (x Examination) Run(ctx context.Context) []Finding {
	var r Report
	if check := Of(x.URL.Scheme).Check; check != nil {
		r = check(ctx, x.URL)
	}
	closed := func(f Finding) bool { return f.Status == Fail || f.KeepClosed }
	if i := slices.IndexFunc(r, closed); i >= 0 {
		r.Warn("store", fmt.Sprintf("not opened, because of the finding about %s", r[i].Check), "follow the advice above, and repeat")
		return r
	}
	store, err := x.Open(ctx)
	if err != nil {
		r.Fail("store", "cannot be opened: "+err.Error(), "see the message")
		return r
	}
	x.store(ctx, store, &r)
	if err := store.Close(); err != nil {
		r.Warn("close", err.Error(), "see the message; what the store acknowledged is stored")
	}
	return r
}

func (x Examination) store(ctx context.Context, store runstore.RunStore, r *Report) {
	if d, ok := runstore.As[runstore.Describer](store); ok {
		if about, err := d.Describe(ctx); err != nil {
			r.Fail("version", err.Error(), "see the message")
		} else {
			r.OK("version", "%s %s (%s)", about.Engine, about.Version, about.Tier)
		}
	}
	if e, ok := runstore.As[runstore.EpochManager](store); ok {
		epochs(ctx, e, r)
	}
	clock := localclock.New(x.Clock)
	x.now(ctx, clock, store, r)
	if x.Write {
		scratch(ctx, clock, store, r)
	}
}

func epochs(ctx context.Context, e runstore.EpochManager, r *Report) {
	all, err := e.Epochs(ctx)
	switch {
	case err != nil:
		r.Fail("epochs", err.Error(), "see the message")
	case len(all) == 0:
		r.OK("epochs", "epoch 0: never raised")
	default:
		last := all[len(all)-1]
		r.OK("epochs", "epoch %d since %s: %q", last.Epoch, last.At.Format(time.RFC3339), last.Reason)
	}
}

// now measures Now, and compares the store clock with the host's at the fastest reading, whose
// round trip bounds the error.
func (x Examination) now(ctx context.Context, clock localclock.Clock, store runstore.RunStore, r *Report) {
	var best, offset time.Duration
	took, err := measure(clock, func() error {
		before := clock.Read()
		now, err := store.Now(ctx)
		trip := clock.Since(before)
		if err == nil && (best == 0 || trip < best) {
			best, offset = max(trip, 1), now.Sub(before.Wall().Add(trip/2))
		}
		return err
	})
	if err != nil {
		r.Fail("clock", "the store clock cannot be read: "+err.Error(), "see the message")
		return
	}
	found := fmt.Sprintf("the store clock is %v against this host's, give or take %v", signed(offset), round(best/2))
	if offset.Abs() > skew+best/2 {
		r.Warn("clock", found, "synchronize the clocks (NTP): leases are judged by the store clock alone, but times in logs do not match")
	} else {
		r.OK("clock", "%s", found)
	}
	r.latency("latency", "reading the clock", took, slowNow, "look at the network between this host and the store, and at the load of the store")
}

// latency adds the finding of a measurement.
func (r *Report) latency(check, what string, took []time.Duration, slow time.Duration, advice string) {
	p99 := percentile(took, 99)
	found := fmt.Sprintf("%s: p50 %v, p99 %v of %d", what, round(percentile(took, 50)), round(p99), len(took))
	if p99 > slow {
		r.Warn(check, found, advice)
		return
	}
	r.OK(check, "%s", found)
}

// scratch writes to the scratch run.
func scratch(ctx context.Context, clock localclock.Clock, store runstore.RunStore, r *Report) {
	lease, err := takeScratch(ctx, store)
	if errors.Is(err, runstore.ErrLeaseHeld) {
		r.Warn("write", fmt.Sprintf("another examination holds the run %q", ScratchRun), "repeat in a minute")
		return
	}
	if err != nil {
		r.Fail("write", "the run "+string(ScratchRun)+" cannot be created or leased: "+err.Error(), "see the message; a server needs the same rights")
		return
	}
	took, err := measure(clock, func() error {
		batch := runstore.NewBatch(ScratchRun, lease.Fence())
		batch.Put("sample", []byte("x"))
		_, err := store.Commit(ctx, batch)
		return err
	})
	if err != nil {
		r.Fail("write", "a commit failed: "+err.Error(), "see the message; a server needs the same rights")
	} else {
		r.latency("write", "a fenced commit of one record", took, slowCommit, "look at the disk or the network of the store, and at its load")
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	purge := runstore.NewBatch(ScratchRun, lease.Fence())
	purge.Purge = true
	if _, err := store.Commit(end, purge); err != nil {
		r.Warn("purge", fmt.Sprintf("the run %q was left: %v", ScratchRun, err), "repeat; the next examination purges it")
		return
	}
	late := runstore.NewBatch(ScratchRun, lease.Fence())
	late.Put("sample", []byte("late"))
	switch _, err := store.Commit(end, late); {
	case err == nil:
		r.Fail("fence", "a write under an ended grant was applied", "stop all drivers: this store does not fence; report the versions above")
	case errors.Is(err, runstore.ErrFenced), errors.Is(err, runstore.ErrNotFound):
		r.OK("fence", "a write under an ended grant is refused")
	default:
		r.Warn("fence", "a write under an ended grant failed otherwise: "+err.Error(), "see the message, and repeat")
	}
}

// errNotScratch is returned for a run of a user that has the name of the scratch run.
var errNotScratch = errors.New("it exists and is no scratch run, so it is left as it is")

// takeScratch creates the scratch run under a lease. A run that an interrupted examination has left
// is taken over once its lease has expired.
func takeScratch(ctx context.Context, store runstore.RunStore) (runstore.Lease, error) {
	spec := runstore.LeaseSpec{Owner: "doctor", Reactor: "doctor", TTL: time.Minute, Grant: runstore.NewGrantID()}
	created, err := store.CreateRun(ctx, runstore.RunSpec{ID: ScratchRun, Unlisted: true, Lease: &spec})
	if err != nil || created.New {
		return created.Lease, err
	}
	if run := created.Run; !run.Unlisted || run.LastSeq > 0 || run.Summary.Version > 0 {
		return runstore.Lease{}, errNotScratch
	}
	granted, err := store.AcquireLease(ctx, runstore.AcquireRequest{Run: ScratchRun, LeaseSpec: spec})
	return granted.Lease, err
}

// measure calls f up to samples times and returns how long each call took, sorted. It stops at the
// first error, and after the call with which it exceeds the bound of sampling.
func measure(clock localclock.Clock, f func() error) ([]time.Duration, error) {
	var took []time.Duration
	for began := clock.Read(); len(took) < samples && (len(took) == 0 || clock.Since(began) < sampling); {
		before := clock.Read()
		if err := f(); err != nil {
			return nil, err
		}
		took = append(took, clock.Since(before))
	}
	slices.Sort(took)
	return took, nil
}

// percentile returns the p-th percentile of sorted, which is not empty, by nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// round shortens a duration to what matters to a reader.
func round(d time.Duration) time.Duration {
	switch {
	case d.Abs() >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d.Abs() >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	default:
		return d.Round(100 * time.Nanosecond)
	}
}

// signed returns a duration with its sign.
func signed(d time.Duration) string {
	if d >= 0 {
		return "+" + round(d).String()
	}
	return round(d).String()
}
