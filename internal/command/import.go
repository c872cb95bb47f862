package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
)

func newImportCommand() *cobra.Command {
	var url, from string
	var raise bool
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Write the runs of an archive to a store",
		Long: `Write the runs of an archive of tapestore export to a store of any engine, with their seqs,
times, tokens, versions and index entries. The store is created if need be.

The archive is read once to check its sums before anything is written, unless it comes from standard
input (--from -). The epoch of the store is raised above that of the archive, so that no lease of
the source is valid there and tokens only grow. That ends all leases of the store, so a store that
has runs needs --raise-epoch.

A run that the store has already is never changed: it must equal that of the archive. So an import
that was interrupted is repeated, and continues; it waits up to 30 seconds for the lease of the run
that it was at. Start no driver on the store before the import has finished.

The exit status is 0 when the store has all runs of the archive, 2 when some of its own runs differ
from those of the archive, which were left as they are, and 1 otherwise.`,
		Example: `  tapestore import --store spanner://project/instance/database --from backup/
  gzip -dc tape.jsonl.gz | tapestore import --store sqlite:./copy.db --from -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills the process
			address, err := givenStore(url, os.LookupEnv)
			if err != nil {
				return err
			}
			source, err := openArchive("--from", from, cmd.InOrStdin())
			if err != nil {
				return err
			}
			p := newMoveProgress(cmd.ErrOrStderr())
			if source.Repeatable() {
				if _, err := archive.Check(ctx, source); err != nil {
					return fmt.Errorf("--from: nothing was imported: %w", err)
				}
			}
			store, err := runstore.Open(ctx, address)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, store.Close()) }()
			report, err := archive.Import(ctx, source, store, &archive.ImportOptions{
				RaiseEpoch: raise,
				Conflict: func(d archive.Difference) {
					p.end()
					fmt.Fprintln(cmd.ErrOrStderr(), d)
				},
				Progress: func(r archive.ImportReport) {
					p.show(fmt.Sprintf("imported %s; %d runs were present", countsText(r.Imported), r.Present))
				},
			})
			p.end()
			fmt.Fprintf(cmd.ErrOrStderr(), "imported %s; %d runs were present, %d differ; the store is in epoch %d\n",
				countsText(report.Imported), report.Present, report.Conflicts, report.Epoch)
			switch {
			case errors.Is(err, archive.ErrConflicts):
				return &exitError{err, exitRefused}
			case errors.Is(err, archive.ErrEpoch) && !raise:
				return fmt.Errorf("%w; stop its drivers and allow that with --raise-epoch", err)
			case err != nil:
				return fmt.Errorf("the import did not finish; repeat it: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&from, "from", "", "directory or file to read, - for standard input")
	f.BoolVar(&raise, "raise-epoch", false, "raise the epoch of a store that has runs, which ends their leases")
	return cmd
}

// openArchive returns the archive that a flag names: a directory, a file or "-" for the input.
func openArchive(flag, name string, in io.Reader) (*archive.Source, error) {
	switch name {
	case "":
		return nil, fmt.Errorf("name the archive with %s DIRECTORY, %s FILE or %s -", flag, flag, flag)
	case "-":
		return archive.Stream("-", in), nil
	}
	source, err := archive.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return source, nil
}
