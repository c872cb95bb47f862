package command

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
)

// retainSources are the sources of the settings of retention; see serveSources.
var retainSources = []settingSource{
	{"retain-journals", "TAPE_RETAIN_JOURNALS", "serve.retain_journals"},
	{"retain-feed", "TAPE_RETAIN_FEED", "serve.retain_feed"},
	{"retain-tasks", "TAPE_RETAIN_TASKS", "serve.retain_tasks"},
	{"retain-dead-tasks", "TAPE_RETAIN_DEAD_TASKS", "serve.retain_dead_tasks"},
	{"retain-archive", "TAPE_RETAIN_ARCHIVE", "serve.retain_archive"},
	{"retain-pace", "TAPE_RETAIN_PACE", "serve.retain_pace"},
}

func addRetainFlags(f *pflag.FlagSet) {
	f.String("retain-journals", "", "archive and purge runs that ended so long ago, for example 90d, once a day by one of all servers; empty for never [TAPE_RETAIN_JOURNALS]")
	f.String("retain-feed", "", "how far readers of the feed may be behind; at most --retain-journals [TAPE_RETAIN_FEED]")
	f.String("retain-tasks", "", "delete tasks that were completed so long ago, for example 7d; empty for never [TAPE_RETAIN_TASKS]")
	f.String("retain-dead-tasks", "", "delete tasks of the dead-letter queue that are so old; empty for never [TAPE_RETAIN_DEAD_TASKS]")
	f.String("retain-archive", "", `directory or bucket (gs://…) of the archive; "none" purges without one [TAPE_RETAIN_ARCHIVE]`)
	f.Int("retain-pace", defaultRetainPace, "runs per second that are archived and purged; 0 for no limit [TAPE_RETAIN_PACE]")
}

// retention returns the settings of retention, nil if nothing is to be retained.
func (s *settings) retention() *retention {
	text := func(flag string) string { return s.values[flag].text }
	r, faults := retentionText{
		journals: text("retain-journals"), feed: text("retain-feed"), tasks: text("retain-tasks"), dead: text("retain-dead-tasks"), archive: text("retain-archive"),
	}.parse()
	for _, fault := range faults {
		v := s.values["retain-"+fault.name]
		switch {
		case fault.missing && !s.alone: // blame the setting that needs it
			s.refuse(s.values["retain-journals"], "needs --retain-%s: %s", fault.name, fault.problem)
		case !fault.together || !s.alone:
			s.refuse(v, "%s", fault.problem)
		}
	}
	r.pace = float64(s.whole("retain-pace", 0))
	if !r.on() {
		return nil
	}
	return r
}

// serve makes the passes in the background until ctx ends, and returns a channel that is closed when the
// last one has ended. Without settings it does nothing.
func (r *retention) serve(ctx context.Context, store runstore.RunStore, label string, measures *serveTelemetry) <-chan struct{} {
	ended := make(chan struct{})
	if r == nil {
		close(ended)
		return ended
	}
	r.label = label
	opts := retain.DailyOptions{Logger: measures.log, Coordinator: election.Options{Logger: measures.log}}
	if measures.meters != nil {
		opts.MeterProvider = measures.meters
	}
	go func() {
		defer close(ended)
		err := retain.Daily(ctx, store, opts, func(ctx context.Context) (retain.Summary, error) {
			done, err := r.pass(ctx, store)
			return retain.Summary{Runs: done.runs, Tasks: done.tasks.Done + done.tasks.Dead}, err
		})
		if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
			measures.log.Error("retention has ended; restart the server", "error", err)
		}
	}()
	return ended
}
