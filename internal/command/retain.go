package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
)

func newRetainCommand() *cobra.Command {
	var url, format string
	var text retentionText
	var dryRun, verbose bool
	var maxRuns int64
	var pace float64
	cmd := &cobra.Command{
		Use:   "retain",
		Short: "Archive and purge runs that ended long ago, and delete old tasks",
		Long: `Go through the runs of a store once. A run that ended, and was neither changed nor leased, for
longer than --journals is written to the archive, read back and checked, and then purged: its journal
and records go, and with them its events in the feed. Its token stays. A run that is not settled is
kept: one with an effect that is not complete, an obligation that is open or stuck, a timer that was not
fired, or a step over two runs; and one that is STUCK.

--feed is how far readers of the feed may be behind without losing an event. It is a promise: --journals
must be as long, and a purge takes no event out of the feed that is younger.

--tasks deletes completed tasks of reactions, and --dead-tasks those of the dead-letter queue, which were
never done. They are not archived. Open tasks stay.

Durations have a unit: 90d, 12w, 36h. The least is one day. The archive is a directory, or a bucket:
gs://BUCKET?prefix=PATH/. Its objects have one run each, and tapestore import --restore puts it back.

A pass may be interrupted and repeated, and two may run at once. tapestore serve --retain-journals does
this every day. docs/retention.md has the rules, what a purge loses, and how it fails.

The exit status is 0 when the pass has gone through all runs, 2 when some of them could not be archived or
purged, and 1 otherwise. In JSON each run is one line, {"run": …}, and the counts are the last one,
{"report": …}.`,
		Example: `  tapestore retain --journals 90d --feed 30d --tasks 7d --archive /var/lib/tapestore/archive --store sqlite:./tape.db --dry-run
  tapestore retain --journals 90d --archive 'gs://tape-archive?prefix=prod/' --store spanner://project/instance/database`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(url, os.LookupEnv)
			switch {
			case err != nil:
				return err
			case format != "table" && format != "json":
				return fmt.Errorf("--format is %q; it is table or json", format)
			case maxRuns < 0:
				return fmt.Errorf("--max-runs is %d; it is a number of runs, 0 for no limit", maxRuns)
			case pace < 0:
				return fmt.Errorf("--pace is %v; it is a number of runs per second, 0 for no limit", pace)
			}
			r, faults := text.parse()
			if len(faults) > 0 {
				return faults[0].of("--")
			}
			if !r.on() {
				return errors.New("say what to retain with --journals DURATION, --tasks DURATION or --dead-tasks DURATION")
			}
			r.pace, r.dryRun, r.maxRuns, r.label = pace, dryRun, maxRuns, shownURL(address)
			if err := r.open(ctx); err != nil {
				return fmt.Errorf("--archive: %w", err)
			}
			defer func() { err = errors.Join(err, r.close()) }()
			if dryRun {
				address = readOnly(address)
			} else {
				address = existing(address)
			}
			store, err := runstore.Open(ctx, address)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, store.Close()) }()
			out := newRetainOutput(cmd, format, r, verbose || dryRun, stop)
			r.decided = out.decided
			result, err := r.pass(ctx, store)
			if err := out.end(result, err); err != nil {
				return err
			}
			switch {
			case result.onlyRunsFailed(err) && ctx.Err() == nil:
				return &exitError{err, exitRefused}
			case err != nil:
				return fmt.Errorf("the pass did not finish; repeat it: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&text.journals, "journals", "", "age at which an ended run is archived and purged, for example 90d")
	f.StringVar(&text.feed, "feed", "", "how far readers of the feed may be behind; at most --journals")
	f.StringVar(&text.tasks, "tasks", "", "age at which a completed task is deleted, for example 7d")
	f.StringVar(&text.dead, "dead-tasks", "", "age at which a task of the dead-letter queue is deleted")
	f.StringVar(&text.archive, "archive", "", `directory, which must exist, or bucket (gs://…) of the archive; "none" purges without one`)
	f.BoolVar(&dryRun, "dry-run", false, "show what would be purged, and change nothing")
	f.BoolVar(&verbose, "verbose", false, "show each run that is purged")
	f.Int64Var(&maxRuns, "max-runs", 0, "end after so many runs were purged; 0 for no limit")
	f.Float64Var(&pace, "pace", defaultRetainPace, "runs, and commits that delete tasks, per second; 0 for no limit")
	f.StringVar(&format, "format", "table", "table or json")
	return cmd
}

// retainOutput prints what a pass does.
type retainOutput struct {
	out, errs io.Writer
	lines     *json.Encoder // nil for text
	dryRun    bool
	each      bool // print each run that is purged
	progress  *moveProgress
	purged    int64
	failed    error  // of a write
	stop      func() // ends the pass
}

func newRetainOutput(cmd *cobra.Command, format string, r *retention, each bool, stop func()) *retainOutput {
	o := &retainOutput{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), dryRun: r.dryRun, each: each, progress: newMoveProgress(cmd.ErrOrStderr()), stop: stop}
	if format == "json" {
		o.lines = json.NewEncoder(o.out)
		o.lines.SetEscapeHTML(false)
	}
	return o
}

// retainedView is the JSON output for one run.
type retainedView struct {
	Run     string    `json:"run"`
	Ended   time.Time `json:"ended,omitzero"`
	Records int64     `json:"records"`
	Events  int64     `json:"events"`
	Object  string    `json:"object,omitempty"`
	Purged  bool      `json:"purged"`
	Error   string    `json:"error,omitempty"`
}

func (o *retainOutput) decided(d retain.Decision) {
	o.purged++
	if o.purged%100 == 0 {
		o.progress.show(fmt.Sprintf("%d runs", o.purged))
	}
	var err error
	switch {
	case o.lines != nil:
		v := retainedView{Run: string(d.Run), Ended: d.Ended, Records: d.Records, Events: d.Events, Object: d.Object, Purged: d.Purged}
		if d.Err != nil {
			v.Error = oneLine(d.Err)
		}
		err = o.lines.Encode(map[string]any{"run": v})
	case d.Err != nil:
		o.progress.end()
		_, err = fmt.Fprintln(o.errs, oneLine(d.Err)) // it has ids in quotes
	case o.each:
		o.progress.end()
		verb, where := "purged", ""
		if o.dryRun {
			verb = "would purge"
		}
		if d.Object != "" {
			where = ", archived as " + d.Object
		}
		_, err = fmt.Fprintf(o.out, "%s %s: %d events, %d records, ended %s%s\n", verb, plain(string(d.Run)), d.Events, d.Records, plain(d.Ended), where)
	}
	if err != nil && o.failed == nil {
		o.failed = err
		o.stop() // the reader of the output has gone
	}
}

// retainView is the JSON output for the counts.
type retainView struct {
	DryRun     bool             `json:"dry_run"`
	Scanned    int64            `json:"scanned"`
	Purged     int64            `json:"purged"`
	Records    int64            `json:"records"`
	Events     int64            `json:"events"`
	Archived   int64            `json:"archived"`
	Reused     int64            `json:"reused"`
	Gone       int64            `json:"gone"`
	Failed     int64            `json:"failed"`
	Kept       map[string]int64 `json:"kept"`
	More       bool             `json:"more"`
	Tasks      int64            `json:"tasks"`
	DeadTasks  int64            `json:"dead_tasks"`
	Unreadable int64            `json:"unreadable_tasks"`
	Error      string           `json:"error,omitempty"`
}

// end prints the counts, also of a pass that has failed.
func (o *retainOutput) end(r retained, failed error) error {
	o.progress.end()
	if o.failed != nil {
		return o.failed
	}
	if o.lines != nil {
		v := retainView{
			DryRun: o.dryRun, Scanned: r.runs.Scanned, Purged: r.runs.Purged, Records: r.runs.Records, Events: r.runs.Events,
			Archived: r.runs.Archived, Reused: r.runs.Reused, Gone: r.runs.Gone, Failed: r.runs.Failed, Kept: map[string]int64{}, More: r.runs.More,
			Tasks: r.tasks.Done, DeadTasks: r.tasks.Dead, Unreadable: r.tasks.Unreadable,
		}
		for reason, n := range r.runs.Kept {
			v.Kept[string(reason)] = n
		}
		if failed != nil {
			v.Error = oneLine(failed)
		}
		return o.lines.Encode(map[string]any{"report": v})
	}
	verb, deleted := "purged", "deleted"
	if o.dryRun {
		verb, deleted = "would purge", "would delete"
	}
	var kept []string
	for reason, n := range r.runs.Kept {
		kept = append(kept, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(kept)
	line := fmt.Sprintf("%s %d runs, %d records, %d events; %d archives were written, %d were there; %d runs failed",
		verb, r.runs.Purged, r.runs.Records, r.runs.Events, r.runs.Archived, r.runs.Reused, r.runs.Failed)
	if len(kept) > 0 {
		line += "; kept: " + strings.Join(kept, ", ")
	}
	if r.runs.More {
		line += "; there may be more"
	}
	if r.trimmed {
		line += fmt.Sprintf("\n%s %d tasks and %d dead ones", deleted, r.tasks.Done, r.tasks.Dead)
		if r.tasks.Unreadable > 0 {
			line += fmt.Sprintf("; %d records are no tasks", r.tasks.Unreadable)
		}
	}
	_, err := fmt.Fprintln(o.out, line)
	return err
}
