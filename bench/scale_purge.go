package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// purge measures the purges of runs with a given number of events, while another process renews the
// lease of another run.
type purge struct {
	s       *Session
	store   Store
	fills   runstore.RunStore // opened without a network
	purges  *connection
	renews  *connection
	beating runstore.Lease
	events  int
	runs    *int // the number of the next run
	ready   runstore.Lease
	purged  []runstore.RunID
}

// heartbeatPause is the pause between two heartbeats while a run is purged: 2 ms, so short that a
// heartbeat is always in flight or about to start.
const heartbeatPause = 2 * time.Millisecond

// scalePurge compares purges of runs with different numbers of events.
func (s *Session) scalePurge(ctx context.Context, store Store) (err error) {
	handle, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	purges, err := s.connect(ctx, store, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, purges.Close()) }()
	renews, err := s.connect(ctx, store, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, renews.Close()) }()
	beating, err := holdRun(ctx, handle, store.RunID(purgeRuns))
	if err != nil {
		return err
	}
	z := &sized{s: s, group: "purge", param: "events"}
	runs := purgeRuns + 1
	for _, n := range ascending(s.Scale.Sizes) {
		s.Step(3, scaleSteps, fmt.Sprintf("purge of %d events", n))
		p := &purge{s: s, store: store, fills: handle, purges: purges, renews: renews, beating: beating, events: n, runs: &runs}
		began := time.Now()
		switch filled, err := p.fill(ctx, began.Add(s.Scale.Growth)); {
		case err != nil:
			return err
		case filled < n:
			s.Note(s.Target.System.Name, "purge of %d events: left out, filled to %d in %v", n, filled, s.Scale.Growth)
		default:
			z.add("purge", n, n, Side{Round: p.round, Verify: p.verify})
		}
	}
	return s.Compare(ctx, z.sides...)
}

// fill creates the next run to purge, with up to all of its events.
func (p *purge) fill(ctx context.Context, deadline time.Time) (filled int, err error) {
	if p.ready, err = holdRun(ctx, p.fills, p.store.RunID(*p.runs)); err != nil {
		return 0, err
	}
	*p.runs++
	data := payload(smallBytes)
	for filled < p.events && time.Now().Before(deadline) {
		n := min(p.events-filled, runstore.MaxEvents)
		if _, err := p.fills.Commit(ctx, Write{Events: n, Data: data}.batch(p.ready)); err != nil {
			return filled, fmt.Errorf("filling a journal with %d events: %w", filled, err)
		}
		filled += n
	}
	return filled, ctx.Err()
}

// round renews the other lease for d, and then during the purge of a run.
func (p *purge) round(ctx context.Context, d time.Duration, m *Measured) error {
	if p.ready.Run == "" {
		if _, err := p.fill(ctx, time.Now().Add(time.Hour)); err != nil {
			return err
		}
	}
	calm, err := p.renewDuring(ctx, func(ctx context.Context) error { return sleep(ctx, d) })
	if err != nil {
		return err
	}
	sent := p.purges.sent()
	var took time.Duration
	stalled, err := p.renewDuring(ctx, func(ctx context.Context) error {
		b := runstore.NewBatch(p.ready.Run, p.ready.Fence())
		b.Purge = true
		began := time.Now()
		_, err := p.purges.Commit(ctx, b)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	p.purged = append(p.purged, p.ready.Run)
	p.ready = runstore.Lease{}
	m.Add(Rate, "events/s", More, float64(p.events)/took.Seconds())
	m.Add("purge", "ms", Less, float64(took)/float64(time.Millisecond))
	m.AddPeak("slowest heartbeat during the purge", Less, slices.Max(stalled))
	m.AddPeak("slowest heartbeat before it", "", slices.Max(calm))
	p.purges.addRequests(m, "purge", sent, 1)
	return nil
}

// renewDuring renews the other run's lease for as long as do takes. It returns the duration of each
// renewal that began before do ended, at least one.
func (p *purge) renewDuring(ctx context.Context, do func(ctx context.Context) error) (took []time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, first, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			began := time.Now()
			if i == 0 {
				close(first)
			}
			if _, err := p.renews.RenewLease(ctx, runstore.RenewRequest{Fence: p.beating.Fence(), TTL: runstore.MaxTTL}); err != nil {
				cancel()
				done <- fmt.Errorf("heartbeat: %w", err)
				return
			}
			took = append(took, time.Since(began))
			select {
			case <-stop:
				done <- nil
				return
			case <-time.After(heartbeatPause):
			}
		}
	}()
	<-first
	err = do(ctx)
	close(stop)
	return took, errors.Join(<-done, err)
}

// verify checks that the purged runs are gone, and that the other run is still held.
func (p *purge) verify(ctx context.Context) (string, error) {
	for _, id := range p.purged {
		page, err := p.fills.ReadJournal(ctx, id, 1, 1)
		if !errors.Is(err, runstore.ErrNotFound) {
			return "", fmt.Errorf("run %s was purged, and its journal has %d events, error %v", id, len(page), err)
		}
	}
	run, err := p.fills.GetRun(ctx, p.beating.Run)
	if err == nil && run.Holder.Token != p.beating.Token {
		err = fmt.Errorf("run %s is held under token %d, and was granted under %d", run.ID, run.Holder.Token, p.beating.Token)
	}
	return strconv.Itoa(len(p.purged)) + " runs are gone, the other is still held", err
}
