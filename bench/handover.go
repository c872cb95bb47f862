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

const (
	// handoverPoll is the pause of the polling standbys, less its jitter: 100 ms, a tenth of the
	// keeper's default, so that a run of the benchmark does not wait for the default.
	handoverPoll = 100 * time.Millisecond
	// handoverTTL is the TTL of leases that are left to expire: 100 ms.
	handoverTTL = 100 * time.Millisecond
	// handoverWork is how long a holder keeps a lease before it releases it: 20 ms.
	handoverWork = 20 * time.Millisecond
	// handoverRound is the time after which a round ends early, once it had one handover: 5 s.
	handoverRound = 5 * time.Second
	// handoverWrites is the pause between two writes to another run: 5 ms.
	handoverWrites = 5 * time.Millisecond
)

func handoverPart() Part {
	return Part{
		Name: "handover", Title: "Handover to a waiting standby",
		Doc: `Standbys wait for one lease, each with a keeper, on one shared handle; the holder has a handle of its own, and so has a writer of another run, which commits every 5 ms. ` +
			`Release: from the call that releases the lease, 20 ms after its grant, to the next grant. ` +
			`Expiry: from the expiry of a lease of 100 ms to the next grant, both on the store clock. Time passes unannounced, so hints are no help there. ` +
			`Standbys with hints have a keeper's default options (they also poll, every 1 to 10 s); standbys that poll do so every 50 to 100 ms. ` +
			`Requests per handover are those of all standbys. Idle: how often one standby asks the store while nothing happens, at the beginning of its wait; ` +
			`with the defaults it falls to one request in 7.5 s. What an engine sends of itself to deliver hints is not counted.`,
		Run: runHandover,
	}
}

// handover is one side of the comparison: standbys of one kind that wait for the lease of one run.
type handover struct {
	holder, shared, writer runstore.RunStore
	run, other             runstore.RunID
	standbys               int
	hints, expiry          bool
	times                  int // handovers in a round

	tokens []runstore.Token // of the grants, in the order in which they arrived
	writes int              // to the other run
}

// runHandover compares keepers with hints and polling keepers, after a release and after an expiry,
// for each number of standbys.
func runHandover(ctx context.Context, s *Session) error {
	return s.WithStore(ctx, func(store Store) (err error) {
		var handles []runstore.RunStore
		for range 3 {
			h, err := store.Open(ctx)
			if err != nil {
				return errors.Join(err, closeHandles(handles))
			}
			handles = append(handles, h)
		}
		defer func() { err = errors.Join(err, closeHandles(handles)) }()
		counts := s.withinLimits("standbys", s.Scale.Standbys)
		for i, standbys := range counts {
			s.Step(2*i, 2*len(counts), fmt.Sprintf("%d standbys", standbys))
			var all []*handover
			var sides []Side
			for k := range 4 {
				h := &handover{
					holder: handles[0], shared: handles[1], writer: handles[2],
					run: store.RunID(8*i + 2*k), other: store.RunID(8*i + 2*k + 1), standbys: standbys, hints: k%2 == 0, expiry: k >= 2,
					times: s.Scale.Handovers,
				}
				if h.expiry {
					h.times = max(1, h.times/2)
				}
				if _, ok := runstore.As[runstore.RunNotifier](h.shared); h.hints && !ok {
					continue
				}
				for _, id := range []runstore.RunID{h.run, h.other} {
					if _, err := h.holder.CreateRun(ctx, runstore.RunSpec{ID: id}); err != nil {
						return err
					}
				}
				all = append(all, h)
				sides = append(sides, h.side(s.Target.System.Name))
			}
			if err := s.Compare(ctx, sides...); err != nil {
				return err
			}
			if i < len(counts)-1 {
				continue
			}
			s.Step(2*i+1, 2*len(counts), fmt.Sprintf("%d idle standbys", standbys))
			if err := s.idle(ctx, all); err != nil {
				return err
			}
		}
		return nil
	})
}

func closeHandles(all []runstore.RunStore) (err error) {
	for _, h := range all {
		err = errors.Join(err, h.Close())
	}
	return err
}

func (h *handover) name() string {
	if h.hints {
		return "keeper with hints"
	}
	return "keeper that polls"
}

func (h *handover) params() map[string]string {
	return map[string]string{"standbys": strconv.Itoa(h.standbys)}
}

func (h *handover) side(system string) Side {
	group := "release"
	if h.expiry {
		group = "expiry"
	}
	return Side{Group: group, System: system, Side: h.name(), Params: h.params(), Round: h.round, Verify: h.verify}
}

// round starts the standbys, hands the lease over several times, and stops the standbys.
func (h *handover) round(ctx context.Context, _ time.Duration, m *Measured) (err error) {
	st, err := h.startStandbys(ctx)
	if err != nil {
		return err
	}
	stopWriter := h.write(ctx)
	var current runstore.Lease
	defer func() {
		err = errors.Join(err, stopWriter(), st.stop())
		if current.Token != 0 {
			err = errors.Join(err, h.release(current))
		}
	}()
	if current, err = st.next(ctx); err != nil {
		return err
	}
	h.tokens = append(h.tokens, current.Token)
	if !h.expiry {
		if err := st.allWait(ctx); err != nil {
			return err
		}
	}
	before := st.caller.asked.Load()
	var took []time.Duration
	for start := time.Now(); len(took) < h.times && (len(took) == 0 || time.Since(start) < handoverRound); {
		began := time.Now()
		if !h.expiry {
			if err := h.release(current); err != nil {
				return err
			}
		}
		next, err := st.next(ctx)
		if err != nil {
			return err
		}
		if h.expiry {
			took = append(took, next.ExpiresAt.Add(-next.TTL).Sub(current.ExpiresAt))
		} else {
			took = append(took, time.Since(began))
		}
		current = next
		h.tokens = append(h.tokens, current.Token)
		if !h.expiry {
			if err := sleep(ctx, handoverWork); err != nil {
				return err
			}
		}
	}
	m.Quantiles("next grant", took)
	m.Add("requests per handover", "", Less, float64(st.caller.asked.Load()-before)/float64(len(took)))
	return nil
}

// release ends a grant. It ignores a grant that has expired and was taken over.
func (h *handover) release(l runstore.Lease) error {
	_, err := h.holder.ReleaseLease(context.Background(), runstore.ReleaseRequest{Fence: l.Fence()})
	if errors.Is(err, runstore.ErrFenced) && h.expiry {
		return nil
	}
	return err
}

// write commits to the other run until the caller calls stop.
func (h *handover) write(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		batch := runstore.NewBatch(h.other, runstore.Unguarded("benchmark"))
		batch.Append("work", nil)
		for sleep(ctx, handoverWrites) == nil {
			if _, err := h.writer.Commit(context.WithoutCancel(ctx), batch); err != nil {
				done <- fmt.Errorf("the writer of another run: %w", err)
				return
			}
			h.writes++
		}
		done <- nil
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// verify reads back the tokens of the grants and the writes to the other run.
func (h *handover) verify(ctx context.Context) (string, error) {
	if one := slices.Compact(slices.Sorted(slices.Values(h.tokens))); len(one) < len(h.tokens) {
		return "", errors.New("a token was granted twice")
	}
	// A standby whose lease has expired may report its grant after the next one has.
	for i, t := range h.tokens {
		if i > 0 && !h.expiry && t <= h.tokens[i-1] {
			return "", fmt.Errorf("token %v was granted after %v", t, h.tokens[i-1])
		}
	}
	run, err := h.holder.GetRun(ctx, h.run)
	if err != nil {
		return "", err
	}
	if last := slices.Max(h.tokens); run.Token < last {
		return "", fmt.Errorf("token %v was granted, the store knows %v", last, run.Token)
	}
	other, err := h.holder.GetRun(ctx, h.other)
	if err != nil {
		return "", err
	}
	if int(other.LastSeq) != h.writes {
		return "", fmt.Errorf("%d writes to another run were acknowledged, %d are stored", h.writes, other.LastSeq)
	}
	return fmt.Sprintf("%d grants under growing tokens, and %d writes to another run", len(h.tokens), h.writes), nil
}

// idle counts the requests of standbys whose lease stays held, for all sides at once.
func (s *Session) idle(ctx context.Context, all []*handover) error {
	var waiting []*handover
	var standbys []*standbySet
	var err error
	for _, h := range all {
		if h.expiry {
			continue
		}
		st, standErr := h.startStandbys(ctx)
		if standErr != nil {
			err = standErr
			break
		}
		held, nextErr := st.next(ctx)
		if nextErr != nil {
			err = errors.Join(nextErr, st.stop())
			break
		}
		defer func() { _ = h.release(held) }()
		waiting, standbys = append(waiting, h), append(standbys, st)
	}
	before := make([]int64, len(standbys))
	for i, st := range standbys {
		if err == nil {
			err = st.allWait(ctx)
		}
		before[i] = st.caller.asked.Load()
	}
	began := time.Now()
	if err == nil {
		err = sleep(ctx, s.Scale.Beating)
	}
	for i, st := range standbys {
		asked, took := st.caller.asked.Load()-before[i], time.Since(began)
		err = errors.Join(err, st.stop())
		if err == nil {
			var m Measured
			m.Add("requests per standby", "1/s", Less, float64(asked)/took.Seconds()/float64(waiting[i].standbys))
			s.Record(Result{Group: "idle", System: s.Target.System.Name, Side: waiting[i].name(), Params: waiting[i].params(), Metrics: m.metrics})
		}
	}
	return err
}

// sleep waits for d, or until ctx ends, and then returns its error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
