package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
)

// differenceView is a difference in the JSON output of verify.
type differenceView struct {
	Run     string `json:"run"`
	Record  string `json:"record,omitempty"`
	Seq     int64  `json:"seq,omitempty"`
	Problem string `json:"problem"`
}

// verifyView is the last object of the JSON output of verify.
type verifyView struct {
	Runs       int64 `json:"runs"`
	Records    int64 `json:"records"`
	Events     int64 `json:"events"`
	Differing  int64 `json:"differing"`
	Unreported int64 `json:"unreported"`
}

func newVerifyCommand() *cobra.Command {
	var url, with, from, format string
	var limit int
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare two stores, or an archive with a store, or check an archive",
		Long: `Compare the runs of a store (--store), or of an archive (--from), with those of a copy of it
(--with): heads, records with their versions, stamps and index entries, and journals. Everything is
compared that an import keeps. The last token of a run may be higher in the copy. Without --with, the
sums of the archive are checked.

Nothing is written. Both stores should be idle: a run that changes meanwhile is reported. Of many
differences, the first --limit are shown, and up to 20 of one run.

The exit status is 0 when nothing differs, 2 when something differs or the archive is damaged, and
1 when the comparison did not finish. In JSON every difference is one line, {"difference": …}, and
the counts are the last one, {"report": …}.`,
		Example: `  tapestore verify --store sqlite:./tape.db --with postgres://user@host/database
  tapestore verify --from backup/ --with postgres://user@host/database
  tapestore verify --from backup/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(cmd)
			defer stop()
			switch {
			case url != "" && from != "":
				return errors.New("--store and --from both name the original; give one of them")
			case format != "table" && format != "json":
				return fmt.Errorf("--format is %q; it is table or json", format)
			case limit < 1:
				return fmt.Errorf("--limit is %d; the least is 1", limit)
			}
			out := cmd.OutOrStdout()
			lines := json.NewEncoder(out)
			lines.SetEscapeHTML(false)
			p := newMoveProgress(cmd.ErrOrStderr())
			var failed error // to write
			opts := &archive.VerifyOptions{
				MaxDifferences: limit,
				Found: func(d archive.Difference) {
					p.end()
					var err error
					if format == "json" {
						err = lines.Encode(map[string]any{"difference": differenceView{string(d.Run), string(d.Key), int64(d.Seq), d.Problem}})
					} else {
						_, err = fmt.Fprintln(out, d)
					}
					if err != nil && failed == nil {
						failed = err
						stop() // the reader of the output has gone
					}
				},
				Progress: func(r archive.VerifyReport) { p.show("compared " + countsText(r.Compared)) },
			}
			report, err := compareStores(ctx, cmd, url, from, with, opts)
			p.end()
			var damage *archive.DamageError
			if errors.As(err, &damage) {
				return &exitError{err, exitRefused}
			}
			if err = errors.Join(err, failed); err != nil {
				return err
			}
			if format == "json" {
				c := report.Compared
				err = lines.Encode(map[string]any{"report": verifyView{c.Runs, c.Records, c.Events, report.Differing, report.Unreported}})
			} else {
				_, err = fmt.Fprintf(out, "%s; %d runs differ\n", countsText(report.Compared), report.Differing)
			}
			switch {
			case err != nil:
				return err
			case report.Differing > 0:
				return &exitError{fmt.Errorf("%d runs differ, and %d differences were not shown", report.Differing, report.Unreported), exitRefused}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL of the original ["+storeVariable+"]")
	f.StringVar(&with, "with", "", "store URL of the copy")
	f.StringVar(&from, "from", "", "archive that is the original: directory, file, or - for standard input")
	f.StringVar(&format, "format", "table", "table or json")
	f.IntVar(&limit, "limit", 100, "how many differences are shown")
	return cmd
}

// compareStores compares what the flags of verify name.
func compareStores(ctx context.Context, cmd *cobra.Command, url, from, with string, opts *archive.VerifyOptions) (report archive.VerifyReport, err error) {
	var original *archive.Source
	if from != "" {
		var closeSource func() error
		if original, closeSource, err = openArchive(ctx, "--from", from, cmd.InOrStdin()); err != nil {
			return report, err
		}
		defer func() { err = errors.Join(err, closeSource()) }()
		if with == "" {
			report.Compared, err = archive.Check(ctx, original)
			return report, err
		}
	}
	if with == "" {
		return report, errors.New("name the copy with --with URL")
	}
	address, err := storeURL(with)
	if err != nil {
		return report, fmt.Errorf("--with %w", err)
	}
	var store runstore.RunStore
	if original == nil {
		given, err := givenStore(url, os.LookupEnv)
		if err != nil {
			return report, err
		}
		if store, err = runstore.Open(ctx, readOnly(given)); err != nil {
			return report, fmt.Errorf("--store: %w", err)
		}
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	copied, err := runstore.Open(ctx, readOnly(address))
	if err != nil {
		return report, fmt.Errorf("--with: %w", err)
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	if original != nil {
		return archive.VerifyArchive(ctx, original, copied, opts)
	}
	return archive.Verify(ctx, store, copied, opts)
}
