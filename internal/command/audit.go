package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// auditedIndexes are the indexes of records that Tape uses, without those that it has for each
// session, reaction or tool.
var auditedIndexes = []runstore.IndexName{
	tape.IndexTimers, tape.IndexPending, tape.IndexUnknown, tape.IndexDispatch, tape.IndexReactions,
	tape.IndexObligations, tape.IndexStuckObligations, tape.IndexEnded,
}

// findingView is a finding in the JSON output of audit.
type findingView struct {
	Kind     string `json:"kind"`
	Warning  bool   `json:"warning"`
	Run      string `json:"run,omitempty"`
	Seq      int64  `json:"seq,omitempty"`
	Record   string `json:"record,omitempty"`
	Version  int64  `json:"version,omitempty"`
	Index    string `json:"index,omitempty"`
	Position int64  `json:"position,omitempty"`
	Problem  string `json:"problem"`
}

// reportView is the last object of the JSON output of audit.
type reportView struct {
	Runs        int64 `json:"runs"`
	Unlisted    int64 `json:"unlisted"`
	Events      int64 `json:"events"`
	Terms       int64 `json:"terms"`
	Records     int64 `json:"records"`
	Entries     int64 `json:"index_entries"`
	FeedEvents  int64 `json:"feed_events"`
	FeedPending int64 `json:"feed_pending"`
	Passes      int64 `json:"passes"`
	Findings    int64 `json:"findings"`
	Warnings    int64 `json:"warnings"`
	Suppressed  int64 `json:"suppressed"`
	// SuppressedWarnings is not contained in Suppressed.
	SuppressedWarnings int64 `json:"suppressed_warnings"`
}

func newAuditCommand() *cobra.Command {
	var url, format string
	var indexes []string
	var maxRuns int
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Prove from stored data alone that no fenced write got in",
		Long: `Read every run of a store and report what contradicts its guarantees: tokens that fall
along a journal, terms that overlap, seqs that are not dense, records and index entries
that contradict the journal, a feed that differs from it. It takes no lease and writes
nothing, and may run while the store is in use: what others change meanwhile is read again
before it is reported.

Findings of kind "clock" are warnings: times that contradict the order of the commits,
which a forged write causes, and also a clock that was set back.

On PostgreSQL, AlloyDB and Spanner the first connection after a promotion or a restore
raises the epoch, as with every program that connects; on Bigtable the clock is asked by a
write to a row of its own.

It takes as long as it takes to read the whole store, and memory for --max-runs runs. A
store with more runs has its feed and its indexes read once for each --max-runs of them.
What an audit cannot see is in docs/leases.md.

The exit status is 0 when nothing was found, or warnings only, 2 when something was found,
and 1 when the audit did not finish. Nor has it finished when it saw more contradictions at
once than it reads again, and confirmed none; warnings do not count. In JSON every finding is one
line, {"finding": …}, and the counts are the last one, {"report": …}.`,
		Example: `  tapestore audit --store sqlite:./tape.db
  tapestore audit --store postgres://user@host/database --format json`,
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
			case maxRuns < 1:
				return fmt.Errorf("--max-runs is %d; the least is 1", maxRuns)
			}
			opts := audit.Options{MaxRuns: maxRuns, Indexes: auditedIndexes}
			for _, name := range indexes {
				opts.Indexes = append(opts.Indexes[:len(opts.Indexes):len(opts.Indexes)], runstore.IndexName(name))
			}
			out := cmd.OutOrStdout()
			line := json.NewEncoder(out)
			line.SetEscapeHTML(false)
			var failed error // to write
			opts.Found = func(f audit.Finding) {
				var err error
				if format == "json" {
					err = line.Encode(map[string]any{"finding": findingView{
						string(f.Kind), f.Warning(), string(f.Run), int64(f.Seq), string(f.Key), int64(f.Version), string(f.Index), int64(f.Position), f.Problem,
					}})
				} else {
					_, err = fmt.Fprintln(out, f)
				}
				if err != nil && failed == nil {
					failed = err
					stop() // the reader of the output has gone
				}
			}
			store, err := runstore.Open(ctx, readOnly(address))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, store.Close()) }()
			r, err := audit.Check(ctx, store, &opts)
			if err = errors.Join(err, failed); err != nil {
				return fmt.Errorf("the audit did not finish; until then it has read %d runs and found %d corruptions: %w", r.Runs, r.Findings, err)
			}
			if format == "json" {
				err = line.Encode(map[string]any{"report": reportView{
					r.Runs, r.Unlisted, r.Events, r.Terms, r.Records, r.Entries, r.FeedEvents, r.FeedPending, r.Passes, r.Findings, r.Warnings, r.Suppressed, r.SuppressedWarnings,
				}})
			} else {
				_, err = fmt.Fprintf(out, "%d runs (%d unlisted), %d events in %d terms, %d records, %d index entries, %d events of the feed\n%d corruptions, %d warnings\n",
					r.Runs, r.Unlisted, r.Events, r.Terms, r.Records, r.Entries, r.FeedEvents, r.Findings, r.Warnings)
			}
			if err != nil {
				return err
			}
			if r.FeedPending > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "the feed does not show all events of %d runs yet\n", r.FeedPending)
			}
			if r.SuppressedWarnings > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d further warnings, too many at once, were not read again\n", r.SuppressedWarnings)
			}
			switch {
			case r.Findings == 0 && r.Suppressed > 0:
				return fmt.Errorf("the audit did not finish: %d contradictions, too many at once, were not read again, so each is a corruption or "+
					"a change meanwhile; repeat the audit, while the store is little used or with a lower --max-runs", r.Suppressed)
			case r.Suppressed > 0:
				fmt.Fprintf(cmd.ErrOrStderr(), "%d further contradictions were not read again; repair the store, and repeat the audit\n", r.Suppressed)
			}
			if r.Findings > 0 {
				return &exitError{fmt.Errorf("the audit has found %d corruptions", r.Findings), exitRefused}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&format, "format", "table", "table or json")
	f.StringArrayVar(&indexes, "index", nil, "a further index of records to check; may be repeated")
	f.IntVar(&maxRuns, "max-runs", audit.DefaultMaxRuns, "runs that are compared with one reading of the feed")
	return cmd
}
