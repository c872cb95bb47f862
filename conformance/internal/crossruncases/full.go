package crossruncases

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// stepFull makes steps while one of the runs has room for only a few more records, less at each
// step. A store may limit the records of a run; then each step is made whole, or refused with
// ErrTooLarge and leaves nothing.
func stepFull(t harness.T, e *harness.Env, m stepMode) {
	for _, full := range []string{"lead", "other"} {
		p := newPair(t, e, full, false)
		run, steps := p.lead, 5 // at first the run has room for the records of the intent
		if full == "other" {
			run, steps = p.other, 50 // until the run has no room for a verdict
		}
		f := &filling{t: t, e: e, run: run}
		limited := f.fill()
		for n := 0; n == 0 || limited && n < steps && f.shrink(); n++ {
			what := fmt.Sprintf("%s is full, step %d", full, n)
			if sound, _ := f.step(p, m, what, fmt.Sprint("step-", n)); !sound {
				break
			}
		}
		f.relieve()
		if _, err := f.step(p, m, full+" has room again", "last"); err != nil {
			t.Errorf("%s has room again: the step got %v", full, err)
		}
	}
}

// filling is a run that a case fills with records.
type filling struct {
	t   harness.T
	e   *harness.Env
	run runstore.RunID
	// The filler records grow to take the remaining room: the first grown of them have fillerBytes,
	// and the next has size.
	grown, size int
}

const (
	fillers     = 10
	fillerBytes = 240
	fillerStep  = 24 // less than what a verdict adds to the mark of a step
)

func filler(i int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprintf("filler-%d", i)) }

func ballast(i int) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("ballast-%s-%d", strings.Repeat("x", 900), i))
}

// put writes records and reports whether the store had room for them.
func (f *filling) put(records ...runstore.RecordWrite) bool {
	f.t.Helper()
	b := runstore.NewBatch(f.run, runstore.Unguarded("test"))
	for _, w := range records {
		if !w.Delete { // a store may limit only records in queues
			w.Index = []runstore.Place{{Index: "full", At: runstore.After(0)}}
		}
		b.Records = append(b.Records, w)
	}
	_, err := f.e.Store.Commit(f.t.Context(), b)
	if err != nil && !errors.Is(err, runstore.ErrTooLarge) {
		f.t.Fatalf("fill %q: %v", f.run, err)
	}
	return err == nil
}

// fill writes records until the store has room for one more record of about 350 bytes but not for
// two, and reports whether it reached such a limit. Large records come first, then many small ones,
// which a store cannot move elsewhere.
func (f *filling) fill() (limited bool) {
	f.t.Helper()
	var small []runstore.RecordWrite
	for i := range fillers {
		small = append(small, runstore.RecordWrite{Key: filler(i)})
	}
	f.put(small...)
	next := 0
	records := func(n, size int) (all []runstore.RecordWrite) {
		for i := range n {
			all = append(all, runstore.RecordWrite{Key: ballast(next + i), Value: make([]byte, size)})
		}
		return all
	}
	for _, part := range []struct{ n, size, most int }{{15, 16 << 10, 5}, {200, 256, 4}, {20, 256, 10}, {1, 256, 20}} {
		limited = false
		for range part.most {
			if limited = !f.put(records(part.n, part.size)...); limited {
				break
			}
			next += part.n
		}
	}
	for i := 0; limited; i++ {
		pebble := runstore.RecordKey(fmt.Sprintf("pebble-%d", i))
		if !f.put(runstore.RecordWrite{Key: pebble, Value: make([]byte, 240)}) {
			f.put(runstore.RecordWrite{Key: "pebble-0", Delete: true})
			break
		}
	}
	return limited
}

// shrink takes a little of the remaining room and reports whether there was any.
func (f *filling) shrink() bool {
	if f.size += fillerStep; f.size > fillerBytes {
		f.grown, f.size = f.grown+1, fillerStep
	}
	return f.grown < fillers && f.put(runstore.RecordWrite{Key: filler(f.grown), Value: make([]byte, f.size)})
}

// relieve deletes enough records for any step of the case.
func (f *filling) relieve() {
	var some []runstore.RecordWrite
	for i := range 20 {
		some = append(some, runstore.RecordWrite{Key: ballast(i), Delete: true})
	}
	if !f.put(some...) {
		f.t.Errorf("%q is too full to delete records", f.run)
	}
}

// step makes a step that puts some 5 KB of new records on the run. sound reports that the step was
// made or was refused for its size.
func (f *filling) step(p pair, m stepMode, what, tag string) (sound bool, err error) {
	lead := runstore.NewBatch(p.lead, p.lease.Fence())
	other := runstore.NewBatch(p.other, runstore.AtVersion(runstore.RecordKey(tag), 0))
	for _, b := range []*runstore.Batch{&lead, &other} {
		b.Append("test", []byte(tag+"/first"))
		if b.Run() != f.run {
			continue
		}
		for i := range 16 {
			b.Put(runstore.RecordKey(fmt.Sprintf("%s-%d", tag, i)), make([]byte, 200))
		}
	}
	_, err = crossrun.Commit(f.t.Context(), m.lossless(f.e.Store), lead, other)
	sound = err == nil || runstore.KindOf(err) == runstore.ErrTooLarge
	if !sound {
		f.t.Errorf("%s: the step got %v, want none or ErrTooLarge", what, err)
	}
	p.checkAtomic(f.t, f.e, what, tag, err)
	return sound, err
}
