package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// dueRuns is how many runs are due for a driver among those under a lease: 10, so few that a scan
// for one page has to reach the end of what is due.
const dueRuns = 10

// liveStore is a store with many runs under a lease, and few runs that are due.
type liveStore struct {
	*connection
	scan  *indexScan
	turns int // acquires with their releases
}

// scaleLive compares stores with different numbers of live leases.
func (s *Session) scaleLive(ctx context.Context) (err error) {
	z := &sized{s: s, group: "live leases", param: "live leases"}
	before := 0
	for _, n := range ascending(s.Scale.Live) {
		s.Step(0, scaleSteps, fmt.Sprintf("%d live leases", n))
		l, live, drop, failed := s.fillLive(ctx, n)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, drop()) }()
		if !s.reached(n, live, before, "live leases") {
			continue
		}
		before = live
		if err := s.firstScan(ctx, l, n, live); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.Fault(s.Target.System.Name, fmt.Errorf("the first scan among %d live leases: %w", live, err))
			continue
		}
		z.add("scan", n, live, Side{Round: l.round, Verify: l.scan.verify})
		z.add("acquire and release", n, live, Side{Round: l.turn, Verify: l.verifyTurns})
	}
	return s.Compare(ctx, z.sides...)
}

// fillLive makes a store with n live leases, and opens it over a network. live is the number of
// leases that it reached.
func (s *Session) fillLive(ctx context.Context, n int) (l *liveStore, live int, drop func() error, err error) {
	store, handle, dropStore, err := s.openStore(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dropStore())
		}
	}()
	due := min(dueRuns, n)
	leased := func(i int) bool { return i >= due } // the due runs come first, so that they exist however far the fill gets
	runs, err := fillRuns(ctx, s.fillers(), store, handle, n+due, leased, s.Scale.Payloads[0], s.Scale.Growth)
	if err != nil {
		return nil, 0, nil, err
	}
	c, err := s.connect(ctx, store, 1)
	if err != nil {
		return nil, 0, nil, err
	}
	for _, is := range runs.live {
		if is {
			live++
		}
	}
	l = &liveStore{connection: c, scan: &indexScan{store: c, index: runstore.IndexRunnable, name: "runnable", runs: runs}}
	return l, live, func() error { return errors.Join(c.Close(), dropStore()) }, nil
}

// firstScan records the scan that finds every entry where the run's grant placed it, and the cost
// of the scans until they have settled. Then it reads back the whole index. wanted is the number of
// live leases that was asked for.
func (s *Session) firstScan(ctx context.Context, l *liveStore, wanted, live int) error {
	var m Measured
	first := l.sent()
	scan := func() (took time.Duration, objects float64, err error) {
		before, began := allocated(), time.Now()
		_, err = l.ScanIndex(ctx, l.scan.query(scanPage))
		took = time.Since(began)
		objects, _ = allocated().since(before, 1)
		return took, objects, err
	}
	took, objects, err := scan()
	if err != nil {
		return err
	}
	m.Add("first scan", "ms", Less, float64(took)/float64(time.Millisecond))
	m.Add("allocations of the first scan", "", Less, objects)
	l.addRequests(&m, "first scan", first, 1)

	cost := func(took time.Duration, before int64) float64 {
		if l.counted() {
			return float64(l.sent() - before)
		}
		return float64(took)
	}
	var until settling
	until.scanned(cost(took, first), l.sent()-first)
	for since, began := time.Now(), time.Now(); time.Since(since) < settled*s.Scale.Slice && time.Since(began) < s.Scale.Growth; {
		before := l.sent()
		took, _, err := scan()
		if err != nil {
			return err
		}
		if until.scanned(cost(took, before), l.sent()-first) {
			since = time.Now()
		}
	}
	m.Add("scans until settled", "", Less, float64(until.scans))
	if l.counted() {
		m.Add("requests per live lease until settled", "", Less, float64(until.requests)/float64(max(1, live)))
	}
	m.metrics = append(m.metrics, Size{live, "live leases"}.metric())
	if err := l.scan.whole(ctx); err != nil {
		return err
	}
	s.Record(Result{
		Group: "first scan", System: s.Target.System.Name, Side: "scan", Params: map[string]string{"live leases": strconv.Itoa(wanted)}, Metrics: m.metrics,
		Verified: fmt.Sprintf("the index has the %d runs that are due, and none of %d under a lease", len(l.scan.order), live),
	})
	return nil
}

// settling finds the scan with which scans have settled: the first of the cheapest ones.
type settling struct {
	all      int // scans so far
	cheapest float64
	scans    int   // up to the cheapest one
	requests int64 // that were sent up to the end of it
}

// scanned counts a scan, and reports whether it was cheaper than all before. requests is the number
// of requests that all scans have sent.
func (z *settling) scanned(cost float64, requests int64) bool {
	if z.all++; z.all > 1 && cost >= z.cheapest {
		return false
	}
	z.cheapest, z.scans, z.requests = cost, z.all, requests
	return true
}

// settled is the number of slices without a new cheapest scan after which scans count as settled:
// 8, which is 1 s at the standard scale.
const settled = 8

func (l *liveStore) round(ctx context.Context, d time.Duration, m *Measured) error {
	q := l.scan.query(scanPage)
	return l.repeat(ctx, d, m, "scans/s", "scan", func(ctx context.Context) error {
		page, err := l.ScanIndex(ctx, q)
		if err != nil {
			return err
		}
		l.scan.pages++
		return l.scan.checkPage(page)
	})
}

// turn acquires the lease of a due run and releases it.
func (l *liveStore) turn(ctx context.Context, d time.Duration, m *Measured) error {
	return l.repeat(ctx, d, m, "turns/s", "turn", func(ctx context.Context) error {
		run := l.scan.runs.ids[l.scan.order[l.turns%len(l.scan.order)]]
		granted, err := l.AcquireLease(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
		if err != nil {
			return err
		}
		l.turns++
		_, err = l.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Lease.Fence()})
		return err
	})
}

// verifyTurns sums the tokens of the due runs: each grant raised one by 1.
func (l *liveStore) verifyTurns(ctx context.Context) (string, error) {
	total := 0
	for _, i := range l.scan.order {
		run, err := l.GetRun(ctx, l.scan.runs.ids[i])
		if err != nil {
			return "", err
		}
		total += int(run.Token.Counter())
	}
	if total != l.turns {
		return "", fmt.Errorf("the tokens say %d grants, and %d were acknowledged", total, l.turns)
	}
	return fmt.Sprintf("%d grants of %d runs", total, len(l.scan.order)), nil
}
