package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// commitPart compares fenced commits with hand-written statements.
func commitPart() Part {
	return Part{
		Name: "commit", Title: "Fenced commits",
		Doc: "Commits under a lease: of several shapes, from 1 to many writers on runs of their own and on one run, with small and large " +
			"events, and to short and long journals. Beside each, in the same rounds and through the same client: the best statement " +
			"written by hand that keeps the guarantees of a fenced commit (the notes show it), and a bare insert of the same payload " +
			"without a check. Every event carries the number of its commit. The store's side reads back every event that it acknowledged, at the seq " +
			"that the acknowledgement named, and repeats an acknowledged batch under its id; the hand-written sides count their rows. Allocations are those of the whole process, which has the " +
			"client, the benchmark and, for Bigtable, the emulator in it.",
		Run: runCommits,
	}
}

// commitSetting is the setting of one comparison.
type commitSetting struct {
	shape   shape
	writers int
	oneRun  bool // all writers write to one run
	bytes   int  // of an event or a record
	group   string
	params  map[string]string
}

// runs returns how many runs are written to.
func (c commitSetting) runs() int {
	if c.oneRun {
		return 1
	}
	return c.writers
}

// run returns the index of the run that a writer writes to.
func (c commitSetting) run(writer int) int {
	if c.oneRun {
		return 0
	}
	return writer
}

// few is the number of writers, in addition to one, with which the shapes are compared.
const few = 16

// smallBytes is the size of an event, in bytes, where the size is not what is compared.
const smallBytes = 100

// commitSettings returns all settings of a scale except the lengths of journals.
func commitSettings(scale Scale) (all []commitSetting) {
	most := 1
	for _, n := range scale.Writers {
		most = max(most, n)
	}
	add := func(group string, c commitSetting, params map[string]string) {
		c.group, c.params = group, params
		all = append(all, c)
	}
	for _, s := range commitShapes {
		for _, n := range []int{1, few} {
			if n > most {
				continue
			}
			add("shapes", commitSetting{shape: s, writers: n, bytes: smallBytes}, map[string]string{"shape": s.name, "writers": strconv.Itoa(n)})
		}
	}
	event := commitShapes[0]
	for _, n := range scale.Writers {
		add("writers, runs of their own", commitSetting{shape: event, writers: n, bytes: smallBytes}, map[string]string{"writers": strconv.Itoa(n)})
	}
	for _, n := range scale.Writers {
		if n > 1 {
			add("writers, one run", commitSetting{shape: event, writers: n, oneRun: true, bytes: smallBytes}, map[string]string{"writers": strconv.Itoa(n)})
		}
	}
	for _, n := range scale.Payloads {
		add("payloads", commitSetting{shape: event, writers: 1, bytes: n}, map[string]string{"bytes": strconv.Itoa(n)})
	}
	return all
}

// commits is the part commit on one store.
type commits struct {
	*Session
	store  Store
	handle runstore.RunStore
	floor  Floor // nil if the store has none
	runs   int   // created runs
	// slowest is the lowest rate of the last comparison.
	slowest float64
}

// runCommits measures the part commit on a new store, with the hand-written side if the target has
// one.
func runCommits(ctx context.Context, s *Session) error {
	return s.WithStore(ctx, func(store Store) (err error) {
		c := &commits{Session: s, store: store}
		if c.handle, err = store.Open(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.handle.Close()) }()
		if store.Floor != nil {
			if c.floor, err = store.Floor(ctx); err != nil {
				return fmt.Errorf("the hand-written side: %w", err)
			}
			defer func() { err = errors.Join(err, c.floor.Close()) }()
		}
		return c.measure(ctx)
	})
}

// measure compares all settings, and then journals of several lengths. It leaves out, with a note,
// settings that would take too long.
func (c *commits) measure(ctx context.Context) error {
	settings := commitSettings(c.Scale)
	began, budget := time.Now(), budget(c.Scale, len(settings))
	if c.Target.System.Emulated() {
		budget /= 2 // an emulator's figures are not ranked
	}
	skipped := "" // the group whose remaining settings are left out
	for i, set := range settings {
		what := Side{Group: set.group, Side: "commits", Params: set.params}.label()
		c.Step(i, len(settings)+1, what)
		if set.group == skipped {
			continue
		}
		if i > 0 && settings[i-1].group == set.group && c.tooSlowFor(set) {
			c.Note(c.Target.System.Name, "%s: left out, and more writers too: the emulator takes %.0f commits/s, so a round would take %.1f s",
				what, c.slowest, float64(set.writers)/c.slowest)
			skipped = set.group
			continue
		}
		if took := time.Since(began); took > budget && set.writers > 1 {
			c.Note(c.Target.System.Name, "%s: left out, the part has taken %.0f s already", what, took.Seconds())
			continue
		}
		if err := c.compare(ctx, set); err != nil {
			return err
		}
	}
	c.Step(len(settings), len(settings)+1, "journal length")
	return c.lengths(ctx)
}

// budget returns the time after which settings with several writers are left out: a quarter more
// than the slices of all sides take, plus 10 s for the work between them. An engine on which many
// writers take far longer than a slice to commit once would exceed it. Scale smoke has no budget: it
// leaves nothing out, however slow the machine is.
func budget(scale Scale, settings int) time.Duration {
	if scale.Name == Smoke().Name {
		return math.MaxInt64
	}
	slices := time.Duration(settings*3*scale.Rounds) * scale.Slice
	return slices*5/4 + 10*time.Second
}

// roundLimit is how long a round on an emulator may take for each writer to commit once: 600 ms,
// five slices of the standard scale.
const roundLimit = 600 * time.Millisecond

// tooSlowFor reports whether an emulator is too slow for the setting's number of writers.
func (c *commits) tooSlowFor(set commitSetting) bool {
	return c.Target.System.Emulated() && set.writers > few && float64(set.writers)/c.slowest > roundLimit.Seconds()
}

// compare measures a setting: the store, the hand-written statement and the bare insert take turns.
func (c *commits) compare(ctx context.Context, set commitSetting) error {
	leases, err := c.hold(ctx, set.runs())
	if err != nil {
		return err
	}
	c.slowest = 0
	store := newCommitSide(set, func(ctx context.Context, run int, w Write) (runstore.Seq, error) {
		return c.commit(ctx, leases[run], w)
	})
	sides := []Side{{
		Group: set.group, System: c.Target.System.Name, Side: "tapestore", Params: set.params, Round: c.round(store),
		Verify: func(ctx context.Context) (string, error) { return c.verify(ctx, store, leases, 0) },
	}}
	if c.floor == nil {
		return c.Compare(ctx, sides...)
	}
	if err := c.floor.Hold(ctx, set.runs()); err != nil {
		return err
	}
	if set.group == "shapes" && set.writers == 1 {
		c.Note(c.Target.System.Name, "hand-written, %s: %s", set.shape.name, c.floor.About(set.shape.write(1, nil)))
	}
	for _, side := range []struct {
		name  string
		write func(ctx context.Context, run int, w Write) error
		pick  func(committed, inserted int) int
	}{
		{"hand-written", c.floor.Commit, func(committed, _ int) int { return committed }},
		{"bare insert", c.floor.Insert, func(_, inserted int) int { return inserted }},
	} {
		floor := newCommitSide(set, func(ctx context.Context, run int, w Write) (runstore.Seq, error) { return 0, side.write(ctx, run, w) })
		sides = append(sides, Side{
			Group: set.group, System: c.Target.System.Name, Side: side.name, Params: set.params, Round: c.round(floor),
			Verify: func(ctx context.Context) (string, error) { return c.verifyFloor(ctx, floor, side.pick) },
		})
	}
	sides[0].Over = map[string]int{"of hand-written": 1, "of bare insert": 2}
	return c.Compare(ctx, sides...)
}

// round returns the function that measures a side for one round.
func (c *commits) round(s *commitSide) func(ctx context.Context, d time.Duration, m *Measured) error {
	return func(ctx context.Context, d time.Duration, m *Measured) error {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		load, err := Drive(ctx, s.set.writers, d, func(ctx context.Context, writer int) error {
			return s.writers[writer].commit(ctx, s)
		})
		runtime.ReadMemStats(&after)
		if err != nil {
			return err
		}
		rate := load.PerSecond()
		if c.slowest == 0 || rate < c.slowest {
			c.slowest = rate
		}
		m.Add(Rate, "commits/s", More, rate)
		m.Quantiles("latency", load.Latencies)
		m.Add("allocations", "allocs/commit", Less, float64(after.Mallocs-before.Mallocs)/float64(load.Done))
		return nil
	}
}

// commit commits to the store, and returns the seq of the first event; 0 without events.
func (c *commits) commit(ctx context.Context, lease runstore.Lease, w Write) (runstore.Seq, error) {
	done, err := c.handle.Commit(ctx, w.batch(lease))
	switch {
	case err != nil:
		return 0, err
	case done.Replayed:
		return 0, errors.New("the store took a new batch for a repeat")
	case w.Events > 0 && (done.FirstSeq < 1 || int64(done.LastSeq-done.FirstSeq) != int64(w.Events)-1):
		return 0, fmt.Errorf("the reply to a commit of %d events names the seqs %d to %d", w.Events, done.FirstSeq, done.LastSeq)
	case len(done.Versions) != w.puts():
		return 0, fmt.Errorf("the reply to a commit of %d records has %d versions", w.puts(), len(done.Versions))
	}
	return done.FirstSeq, nil
}

// hold creates n runs, each under a lease. The leases outlive the part: an expired lease stays
// valid until another holder takes it over.
func (c *commits) hold(ctx context.Context, n int) ([]runstore.Lease, error) {
	leases := make([]runstore.Lease, n)
	errs := make([]error, n)
	slots := make(chan struct{}, few)
	var all sync.WaitGroup
	for i := range n {
		id := c.store.RunID(c.runs)
		c.runs++
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			created, err := c.handle.CreateRun(ctx, runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
			leases[i], errs[i] = created.Lease, err
		})
	}
	all.Wait()
	return leases, errors.Join(errs...)
}
