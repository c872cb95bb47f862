package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Part measures one aspect of a store.
type Part struct {
	Name  string // as on the command line
	Title string // for people
	// Doc describes in a few sentences what is measured and how, for the report.
	Doc string
	// Strategies is true for a part that measures the target's Strategies.
	Strategies bool
	// Run measures the session's target.
	Run func(ctx context.Context, s *Session) error
}

// Parts returns all parts, in the order in which a run executes them.
func Parts() []Part {
	return []Part{casPart(), pausePart(), handoverPart(), commitPart(), readPart(), scalePart(), heartbeatPart(), protocolPart()}
}

// PartNames returns the names of all parts.
func PartNames() (names []string) {
	for _, p := range Parts() {
		names = append(names, p.Name)
	}
	return names
}

// Starter starts a target when a run reaches it.
type Starter struct {
	Name  string
	Start func(ctx context.Context) (Target, error)
	// Missing reports whether an error of Start means that the machine lacks the engine.
	Missing func(error) bool
}

// Options configures Run.
type Options struct {
	Parts []string // names; all if empty
	Scale Scale    // Standard if zero
	// Progress is called before each measurement, from one goroutine.
	Progress func(Progress)
}

// Progress describes how far a run has got.
type Progress struct {
	Done   float64 // 0 to 1, of the whole run
	System string
	Part   string // "" while the engine is being started
	What   string // "16 contenders"
}

// Run measures the targets one after the other, until ctx ends; the report then has what was
// measured so far. Each target is closed before the next one starts, so that they do not compete
// for the machine. The caller sets Command, Version and Machine.
func Run(ctx context.Context, starters []Starter, opts Options) (Report, error) {
	if opts.Scale.Name == "" {
		opts.Scale = Standard()
	}
	parts, err := choose(opts.Parts)
	if err != nil {
		return Report{}, err
	}
	report := Report{Format: Format, Scale: opts.Scale.Name, Began: time.Now()}
	for _, p := range parts {
		report.Parts = append(report.Parts, p.Name)
	}
	for i, starter := range starters {
		if ctx.Err() != nil {
			report.Notes = append(report.Notes, Note{System: starter.Name, Text: "not measured: interrupted"})
			continue
		}
		r := runner{report: &report, scale: opts.Scale, parts: parts, at: i, of: len(starters), progress: opts.Progress}
		r.measure(ctx, starter)
	}
	report.Interrupted, report.Took = ctx.Err() != nil, time.Since(report.Began)
	return report, nil
}

func choose(names []string) ([]Part, error) {
	if len(names) == 0 {
		return Parts(), nil
	}
	var chosen []Part
	for _, name := range names {
		i := slices.IndexFunc(Parts(), func(p Part) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(PartNames(), ", "))
		}
		chosen = append(chosen, Parts()[i])
	}
	return chosen, nil
}

// runner measures one target.
type runner struct {
	report   *Report
	scale    Scale
	parts    []Part
	at, of   int
	progress func(Progress)
}

// measure starts a target, runs every part on it, and stops it. A missing engine becomes a system
// without results; an engine that fails to start, or a part that fails, becomes a fault.
func (r runner) measure(ctx context.Context, starter Starter) {
	r.step(0, 0, Progress{System: starter.Name})
	target, err := starter.Start(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		r.report.Notes = append(r.report.Notes, Note{System: starter.Name, Text: "not measured: interrupted while it was started"})
		return
	case err != nil && starter.Missing != nil && starter.Missing(err):
		r.report.Systems = append(r.report.Systems, System{Name: starter.Name, Missing: err.Error()})
		return
	case err != nil:
		r.report.Systems = append(r.report.Systems, System{Name: starter.Name, Missing: "it could not be started"})
		r.report.Faults = append(r.report.Faults, Fault{System: starter.Name, Text: err.Error()})
		return
	}
	r.report.Systems = append(r.report.Systems, target.System)
	r.report.Systems = append(r.report.Systems, target.Peers...)
	scale := r.scale
	if target.System.Emulated() {
		scale = scale.forEmulator()
	}
	if target.Serial {
		scale = scale.forSerial()
	}
	for i, part := range r.parts {
		s := &Session{Part: part.Name, Scale: scale, Target: target, report: r.report}
		s.step = func(done, total int, what string) {
			r.step(i, float64(done)/float64(max(1, total)), Progress{System: starter.Name, Part: part.Name, What: what})
		}
		s.step(0, 1, "")
		if err := part.Run(ctx, s); err != nil && ctx.Err() == nil {
			s.Fault(target.System.Name, err)
		}
		if ctx.Err() != nil {
			s.Note(target.System.Name, "interrupted")
			break
		}
		competing := func(p Part) bool { return p.Strategies }
		if part.Strategies && target.Rest != nil && !slices.ContainsFunc(r.parts[i+1:], competing) {
			if err := target.Rest(); err != nil {
				s.Fault(target.System.Name, fmt.Errorf("to stop the peers: %w", err))
			}
		}
	}
	if target.Close != nil {
		if err := target.Close(); err != nil {
			r.report.Faults = append(r.report.Faults, Fault{System: starter.Name, Text: "to stop it: " + err.Error()})
		}
	}
}

// step reports progress: part i of the target is complete to the given degree, from 0 to 1.
func (r runner) step(part int, degree float64, p Progress) {
	if r.progress == nil {
		return
	}
	ofTarget := (float64(part) + degree) / float64(max(1, len(r.parts)))
	p.Done = (float64(r.at) + ofTarget) / float64(r.of)
	r.progress(p)
}

// Session is the measurement of one target by one part.
type Session struct {
	Part   string
	Scale  Scale
	Target Target

	mu     sync.Mutex
	report *Report
	step   func(done, total int, what string)

	uncounted bool // a note says that requests are not counted
}

// Step reports progress before a measurement: done of total measurements of the part are complete.
func (s *Session) Step(done, total int, what string) { s.step(done, total, what) }

// Record adds a result.
func (s *Session) Record(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Part, r.Metrics = s.Part, withQuantiles(r.Metrics)
	s.report.Results = append(s.report.Results, r)
}

// Fault records an error that makes the run fail.
func (s *Session) Fault(system string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Faults = append(s.report.Faults, Fault{Part: s.Part, System: system, Text: err.Error()})
}

// Note records what was left out, or what a reader of the report must know.
func (s *Session) Note(system, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Notes = append(s.report.Notes, Note{Part: s.Part, System: system, Text: fmt.Sprintf(format, args...)})
}

// WithStore calls do with a new store of the target, and drops the store afterwards.
func (s *Session) WithStore(ctx context.Context, do func(Store) error) error {
	store, err := s.Target.NewStore(ctx)
	if err != nil {
		return err
	}
	err = do(store)
	if store.Drop != nil {
		err = errors.Join(err, store.Drop())
	}
	return err
}
