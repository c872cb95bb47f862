package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func casPart() Part {
	return Part{
		Name: "cas", Strategies: true, Title: "Contention for a lease",
		Doc: `Contenders take turns at leases: each acquires a lease, commits one event of 100 bytes under its fence and releases it, without a pause between its turns. ` +
			`They share one handle, as the goroutines of one process do. A slice ends after at least one turn; contenders that wait then give up, which counts as a wait and not as a turn. The rate is counted until the last turn ends. ` +
			`The optimistic loop asks again at once. The keeper with back-off polls every 1 to 50 ms, that with hints has its default options. ` +
			`Attempts are requests for the lease and readings that found it held; those of contenders that never win are divided among the wins, too. The latency of losers is that of one such attempt. ` +
			`The latency of winners is that of turns that were won: contenders that starve are not in it, but in the longest wait and in the share that never won. ` +
			`Jain's index and that share are those of all rounds: an index of 1 is equal shares, 1/n is one winner. ` +
			`In the line, contenders of one process wait for each other, and the holder hands the lease to the first of them under its own fence: one commit in place of a release and a grant. Contenders of other processes would have to ask meanwhile, and be refused. ` +
			`The contract of a store has no queue of its own for a lease, neither a row lock that outlives a call nor tickets. ` +
			`An uncontended client runs beside every setting: one contender alone, with the optimistic loop.`,
		Run: runCAS,
	}
}

// casSetting is a number of contenders that compete for a number of leases.
type casSetting struct{ contenders, leases int }

// casSettings returns all pairs of numbers in which there are at least as many contenders as
// leases.
func casSettings(leases, contenders []int) (all []casSetting) {
	for _, leases := range leases {
		for _, contenders := range contenders {
			if contenders >= leases {
				all = append(all, casSetting{contenders, leases})
			}
		}
	}
	return all
}

func (c casSetting) group() string {
	if c.leases == 1 {
		return "one lease"
	}
	return fmt.Sprintf("%d leases", c.leases)
}

func (c casSetting) params() map[string]string {
	return map[string]string{"contenders": strconv.Itoa(c.contenders), "leases": strconv.Itoa(c.leases)}
}

func runCAS(ctx context.Context, s *Session) error {
	return s.withArena(ctx, func(a arena) error {
		settings := casSettings(s.Scale.Leases, s.withinLimits("contenders", s.Scale.Contenders))
		for i, setting := range settings {
			s.Step(i, len(settings), fmt.Sprintf("%d contenders, %s", setting.contenders, setting.group()))
			if err := s.compete(ctx, a, setting); err != nil {
				return err
			}
		}
		if n := len(s.Target.Strategies); n > 0 && len(s.Scale.PeerContenders) < len(s.Scale.Contenders) {
			s.Note(s.Target.System.Name, "the peers compete at %v contenders only", s.Scale.PeerContenders)
		}
		return nil
	})
}

// emulatorContenders is the maximum number of contenders for one lease on an emulator: 8. Spanner's
// emulator runs one transaction at a time, so a round of 64 standbys takes minutes there.
const emulatorContenders = 8

// withinLimits returns the numbers of competitors that the target can handle, and notes those that
// it leaves out. Emulators are not ranked, and some take minutes for what an engine does in a
// slice.
func (s *Session) withinLimits(what string, all []int) (few []int) {
	if !s.Target.System.Emulated() {
		return all
	}
	for _, n := range all {
		if n <= emulatorContenders {
			few = append(few, n)
		}
	}
	if len(few) < len(all) {
		s.Note(s.Target.System.Name, "at most %d %s: the engine is emulated", emulatorContenders, what)
	}
	return few
}

// withArena calls do with a handle on a new store of the target.
func (s *Session) withArena(ctx context.Context, do func(arena) error) error {
	return s.WithStore(ctx, func(store Store) error {
		handle, err := store.Open(ctx)
		if err != nil {
			return err
		}
		return errors.Join(do(arena{system: s.Target.System.Name, store: store, handle: handle, runs: new(atomic.Int64)}), handle.Close())
	})
}

// compete compares all strategies at one setting.
func (s *Session) compete(ctx context.Context, a arena, setting casSetting) error {
	strategies := a.strategies()
	own := len(strategies)
	if slices.Contains(s.Scale.PeerContenders, setting.contenders) {
		strategies = append(strategies, s.Target.Strategies...)
	}
	alone := a.strategy("uncontended client", askAtOnce)
	var sides []Side
	var contests []Contest
	for i, strategy := range append([]Strategy{alone}, strategies...) {
		at := setting
		if i == 0 {
			at = casSetting{1, 1}
		}
		contest, err := strategy.New(ctx, at.contenders, at.leases)
		if err != nil {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), closeAll(contests))
			}
			s.Fault(strategy.System, fmt.Errorf("%s: %w", strategy.Name, err))
			continue
		}
		contests = append(contests, contest)
		c := &competition{contest: contest, setting: at, rounds: s.Scale.Rounds, turns: make([]int, at.contenders)}
		side := Side{
			Group: setting.group(), System: strategy.System, Side: strategy.Name,
			Params: setting.params(), Round: c.round, Verify: c.verify,
		}
		if 0 < i && i <= own && len(sides) > 0 && sides[0].Side == alone.Name {
			side.Over = map[string]int{"of uncontended": 0}
		}
		sides = append(sides, side)
	}
	return errors.Join(s.Compare(ctx, sides...), closeAll(contests))
}

func closeAll(contests []Contest) (err error) {
	for _, c := range contests {
		err = errors.Join(err, c.Close())
	}
	return err
}

// competition drives the contenders of one contest, round by round.
type competition struct {
	contest Contest
	setting casSetting
	rounds  int // rounds of the comparison

	mu    sync.Mutex
	done  int   // completed rounds
	cut   int   // turns that the end of a slice cut short
	turns []int // by contender
}

// slice records what the contenders did in one round.
type slice struct {
	took            time.Duration // until the last win
	wins            int
	attempts, calls int
	waited, lost    []time.Duration
	longest         time.Duration // longest wait, including contenders that gave up
}

// round runs one round of the contest and records its metrics. The last round also records Jain's
// index over all rounds.
func (c *competition) round(ctx context.Context, d time.Duration, m *Measured) error {
	r, err := c.run(ctx, d)
	if err != nil {
		return err
	}
	wins := float64(r.wins)
	m.Add(Rate, "wins/s", More, wins/r.took.Seconds())
	if r.attempts > 0 { // a peer may not count attempts
		m.Add("attempts per win", "", "", float64(r.attempts)/wins)
	}
	if r.calls > 0 {
		m.Add("store calls per win", "", Less, float64(r.calls)/wins)
	}
	m.Quantiles("winner", r.waited)
	m.Quantiles("loser", r.lost)
	m.AddPeak("longest wait", Less, r.longest)
	if c.done++; c.done == c.rounds {
		m.Add("Jain's index", "", More, Load{PerWorker: c.turns}.Jain())
		m.Add("never won", "", Less, c.starved())
	}
	return nil
}

// starved returns the share of the contenders that have won in no round.
func (c *competition) starved() float64 {
	starved := 0
	for _, n := range c.turns {
		if n == 0 {
			starved++
		}
	}
	return float64(starved) / float64(len(c.turns))
}

// run has the contenders take turns until d has passed and at least one has won.
func (c *competition) run(ctx context.Context, d time.Duration) (slice, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	playing, stop := context.WithCancel(ctx)
	defer stop()
	var r slice
	over := false // under c.mu, as r
	began := time.Now()
	timer := time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if over = true; r.wins > 0 {
			stop()
		}
	})
	defer timer.Stop()
	var all sync.WaitGroup
	for w := range c.setting.contenders {
		all.Go(func() {
			for n := w; playing.Err() == nil; n++ {
				at := time.Now()
				turn, err := c.contest.Turn(playing, w, n%c.setting.leases)
				c.mu.Lock()
				switch {
				case err == nil:
					c.turns[w]++
					r.wins++
					r.took = time.Since(began)
					r.waited = append(r.waited, turn.Waited)
					r.add(turn)
				case playing.Err() != nil && errors.Is(err, context.Canceled):
					c.cut++
					turn.Waited = time.Since(at)
					r.add(turn)
				default:
					fail(fmt.Errorf("contender %d: %w", w, err))
				}
				if over && r.wins > 0 {
					stop()
				}
				c.mu.Unlock()
			}
		})
	}
	all.Wait()
	return r, context.Cause(ctx)
}

// add adds the cost of a turn, whether it won or was cut short.
func (r *slice) add(t Turn) {
	r.attempts += t.Attempts
	r.calls += t.Calls
	r.lost = append(r.lost, t.Lost...)
	r.longest = max(r.longest, t.Waited)
}

// verify compares the stored writes of the contest with the turns. A peer may have stored a turn
// that was cut short, because peers do not finish what they have begun; a store of this module is
// compared event by event.
func (c *competition) verify(ctx context.Context) (string, error) {
	stored, err := c.contest.Committed(ctx)
	if err != nil {
		return "", err
	}
	turns := 0
	for _, n := range c.turns {
		turns += n
	}
	if stored < turns || stored > turns+c.cut {
		return "", fmt.Errorf("%d turns were acknowledged, %d writes are stored", turns, stored)
	}
	if _, ok := c.contest.(*storeContest); ok {
		return fmt.Sprintf("%d events, one of each turn, each under a token of its own that grows", stored), nil
	}
	return fmt.Sprintf("%d writes after %d turns", stored, turns), nil
}
