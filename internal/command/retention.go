package command

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/retain/bucket"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

const (
	// defaultRetainPace is 50 runs per second: each takes about ten reads and one commit, which leaves
	// most of a store that makes a thousand commits per second to its drivers.
	defaultRetainPace = 50
	// leastWindow is one day: a window of minutes is a mistake (90m for 90d) that cannot be undone.
	leastWindow = 24 * time.Hour
	// noArchive stands for a purge without an archive.
	noArchive = "none"
)

// retentionText are the settings of retention as text; an empty one is not set.
type retentionText struct{ journals, feed, tasks, dead, archive string }

// retention is what one pass does with a store.
type retention struct {
	journals, feed, tasks, dead time.Duration // 0: not set
	archive                     string        // empty: not set
	pace                        float64
	maxRuns                     int64
	dryRun                      bool
	label                       string
	decided                     func(retain.Decision)

	target      retain.Target // nil: none
	closeTarget func() error
}

func (r *retention) on() bool { return r.journals > 0 || r.tasks > 0 || r.dead > 0 }

// settingFault is a fault of a setting, which is named without the prefix that it has as a flag.
type settingFault struct {
	name, problem string
	together      bool // the setting does not fit to another one
	missing       bool // the setting is not given, and another one needs it
}

// of returns the fault as an error of the flag with a prefix.
func (f settingFault) of(prefix string) error {
	if f.missing {
		return fmt.Errorf("%sjournals needs %s%s: %s", prefix, prefix, f.name, f.problem)
	}
	return fmt.Errorf("%s%s %s", prefix, f.name, f.problem)
}

// parse returns the settings, and their faults.
func (t retentionText) parse() (*retention, []settingFault) {
	r := &retention{archive: t.archive, pace: defaultRetainPace}
	var faults []settingFault
	for _, w := range []struct {
		name, text string
		into       *time.Duration
	}{{"journals", t.journals, &r.journals}, {"feed", t.feed, &r.feed}, {"tasks", t.tasks, &r.tasks}, {"dead-tasks", t.dead, &r.dead}} {
		if w.text == "" {
			continue
		}
		d, ok := parseWindow(w.text)
		switch {
		case !ok:
			faults = append(faults, settingFault{name: w.name, problem: fmt.Sprintf("is %s; it is a duration, for example 90d, 12w or 36h", quoted(w.text))})
		case d < leastWindow:
			faults = append(faults, settingFault{name: w.name, problem: fmt.Sprintf("is %s; the least is 1d", w.text)})
		}
		*w.into = d
	}
	if len(faults) > 0 {
		return r, faults
	}
	misfit := func(name, problem string) {
		faults = append(faults, settingFault{name: name, problem: problem, together: true, missing: name == "archive" && r.archive == ""})
	}
	switch {
	case r.feed > 0 && r.journals == 0:
		misfit("feed", "does nothing without journals: only a purge takes events out of the feed")
	case r.feed > r.journals:
		misfit("feed", fmt.Sprintf("is %s, longer than journals, %s: a purge takes the events of a run out of the feed", t.feed, t.journals))
	}
	switch {
	case r.journals > 0 && r.archive == "":
		misfit("archive", `name a directory or a bucket, or "none" to purge without an archive`)
	case r.journals == 0 && r.archive != "":
		misfit("archive", "does nothing without journals: tasks are not archived")
	}
	return r, faults
}

// windowForm is a number of days or weeks.
var windowForm = regexp.MustCompile(`^([0-9]+)([dw])$`)

// parseWindow returns a duration in days, weeks or the units of time.ParseDuration.
func parseWindow(text string) (time.Duration, bool) {
	m := windowForm.FindStringSubmatch(text)
	if m == nil {
		d, err := time.ParseDuration(text)
		return d, err == nil && d >= 0
	}
	n, err := strconv.ParseInt(m[1], 10, 32)
	unit := 24 * time.Hour
	if m[2] == "w" {
		unit *= 7
	}
	const longest = 100 * 366 * 24 * time.Hour // a product does not overflow below it
	if err != nil || n > int64(longest/unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// open opens the target of the archive.
func (r *retention) open(ctx context.Context) error {
	r.closeTarget = func() error { return nil }
	switch {
	case r.archive == "" || r.archive == noArchive:
	case bucket.IsURL(r.archive):
		b, err := bucket.Open(ctx, r.archive)
		if err != nil {
			return err
		}
		r.target, r.closeTarget = b, b.Close
	case strings.EqualFold(r.archive, noArchive), nearlyURL.MatchString(r.archive):
		return fmt.Errorf("the archive %.64q is neither a directory, nor a bucket (gs://…), nor %q; write ./%s for a directory of that name", r.archive, noArchive, r.archive)
	default:
		dir := retain.Dir(r.archive)
		if err := dir.Check(); err != nil {
			return err
		}
		r.target = dir
	}
	return nil
}

// nearlyURL matches texts that begin as a URL does: a mistyped bucket is no name of a new directory.
var nearlyURL = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)

// close closes the target.
func (r *retention) close() error { return r.closeTarget() }

// retained is what a pass did.
type retained struct {
	runs     retain.Report
	tasks    tape.TasksTrimmed
	trimmed  bool  // tasks were looked at
	tasksErr error // why tasks were left
}

// onlyRunsFailed reports whether a pass with an error did everything but to archive or purge some runs.
func (r retained) onlyRunsFailed(err error) bool {
	return errors.Is(err, retain.ErrFailed) && r.runs.Complete && r.tasksErr == nil
}

// pass makes one pass over the runs and the tasks. An error with the runs does not stop the tasks.
func (r *retention) pass(ctx context.Context, store runstore.RunStore) (done retained, err error) {
	pause := func(ctx context.Context) error { return ctx.Err() }
	if r.pace > 0 {
		pause = rate.NewLimiter(rate.Limit(r.pace), 1).Wait
	}
	if r.journals > 0 {
		done.runs, err = retain.Pass(ctx, store, retain.Options{
			Policy:  retain.Policy{Journals: r.journals, Feed: r.feed, Ended: tape.Ended, Settled: tape.Settled},
			Archive: r.target, Label: r.label, Operator: "tapestore retain", DryRun: r.dryRun, MaxRuns: r.maxRuns, Pause: pause, Decided: r.decided,
		})
	}
	if r.tasks > 0 || r.dead > 0 {
		done.tasksErr = r.trim(ctx, store, pause, &done)
	}
	return done, errors.Join(err, done.tasksErr)
}

// trim deletes old tasks. After the end of ctx it returns an error, also if the runs came to their end.
func (r *retention) trim(ctx context.Context, store runstore.RunStore, pause func(context.Context) error, done *retained) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the tasks were not looked at: %w", context.Cause(ctx))
	}
	now, err := store.Now(ctx)
	if err != nil {
		return err
	}
	trim := tape.TaskTrim{DryRun: r.dryRun, Pause: pause}
	if r.tasks > 0 {
		trim.Done = now.Add(-r.tasks)
	}
	if r.dead > 0 {
		trim.Dead = now.Add(-r.dead)
	}
	done.trimmed = true
	done.tasks, err = tape.New(store, nil).TrimTasks(ctx, trim)
	switch {
	case err == nil:
		return nil
	case done.tasks.Failed == 0:
		return fmt.Errorf("delete tasks: %w", err)
	}
	return fmt.Errorf("tasks of %d shards could not be deleted: %w", done.tasks.Failed, err)
}
