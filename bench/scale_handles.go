package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// paced are handles that commit at a fixed rate, each to a run of its own, and a follower of the
// feed.
type paced struct {
	writers, reader *connection
	leases          []runstore.Lease
	start           runstore.Position
	every           time.Duration

	mu        sync.Mutex
	acked     []map[runstore.Seq]time.Time // by handle: when each commit was acknowledged
	delivered []map[runstore.Seq]time.Time // by handle: when the feed showed each event
	made      int                          // acknowledged commits
	missed    int                          // commits that were due while an earlier one of their handle ran
	latencies []time.Duration              // of both, from the time at which each was due
}

// scaleHandles measures different numbers of handles, one after the other. They do not take turns,
// because the load is a fixed rate and does not depend on the machine's speed.
func (s *Session) scaleHandles(ctx context.Context, store Store) error {
	runs := 0
	for _, n := range ascending(s.Scale.Handles) {
		s.Step(1, scaleSteps, fmt.Sprintf("%d handles", n))
		err := s.scaleHandlesOf(ctx, store, n, runs)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.Fault(s.Target.System.Name, fmt.Errorf("%d handles: %w", n, err))
		}
		runs += n
	}
	return nil
}

// scaleHandlesOf measures n handles, whose runs are numbered from run on.
func (s *Session) scaleHandlesOf(ctx context.Context, store Store, n, run int) (err error) {
	p := &paced{every: s.Scale.Every}
	if p.writers, err = s.connect(ctx, store, n); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.writers.Close()) }()
	if p.reader, err = s.connect(ctx, store, 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.reader.Close()) }()
	for i, handle := range p.writers.all {
		lease, err := holdRun(ctx, handle, store.RunID(run+i))
		if err != nil {
			return err
		}
		p.leases = append(p.leases, lease)
		p.acked, p.delivered = append(p.acked, map[runstore.Seq]time.Time{}), append(p.delivered, map[runstore.Seq]time.Time{})
	}
	if p.start, err = feedEnd(ctx, p.reader); err != nil {
		return err
	}
	r := Result{Group: "handles", System: s.Target.System.Name, Side: "one commit each " + s.Scale.Every.String(), Params: map[string]string{"handles": strconv.Itoa(n)}}
	if err := p.run(ctx, max(s.Scale.Beating, 3*p.every), s.Scale.Rounds, &r); err != nil {
		return err
	}
	r.Verified, err = p.verify()
	if err == nil {
		s.Record(r)
	}
	return err
}

// run has the handles commit for d, then waits until the feed has shown every event. It samples the
// number of requests the given number of times.
func (p *paced) run(ctx context.Context, d time.Duration, samples int, r *Result) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for i := range p.leases {
		writing.Go(func() {
			if err := p.write(ctx, i, stop); err != nil {
				cancel(err)
			}
		})
	}
	over := make(chan struct{})
	reading.Go(func() {
		if err := p.follow(ctx, over); err != nil {
			cancel(err)
		}
	})
	for range samples {
		sent, commits, began := p.writers.sent(), p.commits(), time.Now()
		if sleep(ctx, d/time.Duration(samples)) != nil {
			break
		}
		var m Measured
		made := p.commits() - commits
		m.Add(Rate, "commits/s", "", float64(made)/time.Since(began).Seconds())
		p.writers.addRequests(&m, "commit", sent, made)
		r.add(m.metrics)
	}
	close(stop)
	writing.Wait()
	close(over)
	reading.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var m Measured
	var lags []time.Duration
	for i, acked := range p.acked {
		for seq, at := range acked {
			lags = append(lags, max(0, p.delivered[i][seq].Sub(at))) // a reader may see an event before the writer receives its reply
		}
	}
	m.Quantiles("feed lag", lags)
	m.Quantiles("commit", p.latencies)
	m.Add("missed commits", "", Less, float64(p.missed)/float64(max(1, p.made+p.missed)))
	r.add(m.metrics)
	return nil
}

func (p *paced) commits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// write commits one event per interval, at the handle's own offset within it. A latency counts from
// the time at which the commit was due and not from that of its request, so that a slow commit does
// not hide the ones that it holds up (coordinated omission). A handle that is late skips the commits
// that were due meanwhile instead of catching up in a burst; each counts as missed, with the time
// from when it was due to the end of the commit that held it up.
func (p *paced) write(ctx context.Context, i int, stop <-chan struct{}) error {
	next := time.Now().Add(p.every * time.Duration(i) / time.Duration(len(p.leases)))
	data := payload(smallBytes)
	for {
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(next)):
		}
		done, err := p.writers.all[i].Commit(ctx, Write{Events: 1, Data: data}.batch(p.leases[i]))
		if err != nil {
			return err
		}
		now := time.Now()
		p.mu.Lock()
		p.acked[i][done.LastSeq] = now
		p.made++
		p.latencies = append(p.latencies, now.Sub(next))
		for next = next.Add(p.every); next.Before(now); next = next.Add(p.every) {
			p.missed++
			p.latencies = append(p.latencies, now.Sub(next))
		}
		p.mu.Unlock()
	}
}

// idleFeed is the pause of a follower that found nothing new.
const idleFeed = 5 * time.Millisecond

// follow reads the feed until over is closed and the feed has shown every acknowledged event.
func (p *paced) follow(ctx context.Context, over <-chan struct{}) error {
	handles := make(map[runstore.RunID]int, len(p.leases))
	for i, lease := range p.leases {
		handles[lease.Run] = i
	}
	var deadline <-chan time.Time
	for position, shown := p.start, 0; ; {
		page, err := p.reader.ReadFeed(ctx, runstore.FeedQuery{After: position, Limit: runstore.MaxPage})
		if err != nil {
			return err
		}
		now := time.Now()
		for _, e := range page {
			if e.Err != nil {
				return e.Err
			}
			if e.Position <= position {
				return fmt.Errorf("position %d follows %d", e.Position, position)
			}
			position = e.Position
			i, ours := handles[e.Run]
			if !ours {
				continue
			}
			if want := runstore.Seq(len(p.delivered[i]) + 1); e.Seq != want {
				return fmt.Errorf("run %s: the feed shows seq %d where %d belongs", e.Run, e.Seq, want)
			}
			p.delivered[i][e.Seq], shown = now, shown+1
		}
		if len(page) > 0 {
			continue
		}
		select {
		case <-over:
			if shown >= p.commits() {
				return nil
			}
			if deadline == nil {
				deadline = time.After(feedTimeout)
			}
		default:
		}
		select {
		case <-deadline:
			return fmt.Errorf("%w: it has shown %d events of %d in %v", errFeedEnds, shown, p.commits(), feedTimeout)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleFeed):
		}
	}
}

// verify compares what the feed showed with what was acknowledged.
func (p *paced) verify() (string, error) {
	var all []int
	total := 0
	for i, acked := range p.acked {
		if len(p.delivered[i]) != len(acked) {
			return "", fmt.Errorf("handle %d: the feed showed %d events, and %d were acknowledged", i, len(p.delivered[i]), len(acked))
		}
		for seq := range acked {
			if _, ok := p.delivered[i][seq]; !ok {
				return "", fmt.Errorf("handle %d: the feed never showed seq %d", i, seq)
			}
		}
		all, total = append(all, len(acked)), total+len(acked)
	}
	return fmt.Sprintf("%d events of %d handles, each shown once and in order; %d to %d of a handle", total, len(all), slices.Min(all), slices.Max(all)), nil
}
