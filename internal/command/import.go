package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/retain/bucket"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func newImportCommand() *cobra.Command {
	var url, from string
	var raise, restore, replay bool
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Write the runs of an archive to a store",
		Long: `Write the runs of an archive of tapestore export to a store of any engine, with their seqs,
times, tokens, versions and index entries. The store is created if need be.

The archive is read once to check its sums before anything is written, unless it comes from standard
input (--from -) or from a bucket. The epoch of the store is raised above that of the archive, so that no lease of
the source is valid there and tokens only grow. That ends all leases of the store, so a store that
has runs needs --raise-epoch.

A run that the store has already is never changed: it must equal that of the archive. So an import
that was interrupted is repeated, and continues; it waits up to 30 seconds for the lease of the run
that it was at. Start no driver on the store before the import has finished.

The events of imported runs are new in the feed, so reactions would handle them again, with all their
effects. If the archive has reactions, the command imports the runs and then fails: verify the copy, and
run tapestore reactions skip or replay before a server starts. A store that has live reactions before the
import is refused unless --replay-feed allows it; a repeat of an import that has written reactions needs
the flag, too.

With --restore, runs that tapestore retain or tapestore run purge has purged are put back into the
same store from their archive. No epoch is raised, because the store remembers the tokens of purged runs,
and no lease of another run ends. The events of a restored run are new in the feed, so reactions handle
them again, with all their effects: a store with live reactions needs --replay-feed. To look at a run,
import it into another store instead. An object that tapestore retain has written to a bucket is named by its
URL, gs://BUCKET/PATH.

The exit status is 0 when the store has all runs of the archive, 2 when some of its own runs differ
from those of the archive, which were left as they are, and 1 otherwise.`,
		Example: `  tapestore import --store spanner://project/instance/database --from backup/
  gzip -dc tape.jsonl.gz | tapestore import --store sqlite:./copy.db --from -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(url, os.LookupEnv)
			if err != nil {
				return err
			}
			if raise && restore {
				return errors.New("--restore puts runs back without a new epoch; give it or --raise-epoch")
			}
			source, closeSource, err := openArchive(ctx, "--from", from, cmd.InOrStdin())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeSource()) }()
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
			before, err := liveReactions(ctx, store)
			if err != nil {
				return err
			}
			if len(before) > 0 && !replay {
				return fmt.Errorf("the store has live reactions (%q), which would handle the events of the archive: import into another store, or allow that with --replay-feed. "+
					"If an earlier attempt of this import wrote them, stop all servers of the store and add --replay-feed", before[0])
			}
			mover, _ := runstore.As[runstore.Mover](store) // Import refuses a store without
			reactions := archivedReactions{store, mover, map[runstore.RunID]bool{}}
			report, err := archive.Import(ctx, source, store, &archive.ImportOptions{
				RaiseEpoch: raise, Restore: restore, Copied: reactions.add,
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
				if !restore {
					err = errors.Join(err, reactions.check(ctx))
				}
				return &exitError{err, exitRefused}
			case errors.Is(err, archive.ErrEpoch) && !raise:
				return fmt.Errorf("%w; stop its drivers and allow that with --raise-epoch", err)
			case err != nil:
				return fmt.Errorf("the import did not finish; repeat it: %w", err)
			case !restore:
				return reactions.check(ctx)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&from, "from", "", "directory, file or object of a bucket (gs://…) to read, - for standard input")
	f.BoolVar(&restore, "restore", false, "put runs back into the store that they were purged from, without a new epoch")
	f.BoolVar(&replay, "replay-feed", false, "allow a store that has live reactions, which handle the events of the archive")
	f.BoolVar(&raise, "raise-epoch", false, "raise the epoch of a store that has runs, which ends their leases")
	return cmd
}

// liveReactions returns the ids of the live reactions of a store.
func liveReactions(ctx context.Context, store runstore.RunStore) (ids []string, err error) {
	for r, err := range tape.New(store, nil).Reactions(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list the reactions: %w", err)
		}
		ids = append(ids, r.ID)
	}
	return ids, nil
}

// archivedReactions is a view of a store in which package tape finds only the reactions that came with an
// archive: those of which the store has a shard as the archive has it, so that its cursor is a position in
// the feed of the source. A reaction of the target whose shards all differ from those of the archive has
// cursors of the target.
type archivedReactions struct {
	runstore.RunStore
	runstore.Mover
	first map[runstore.RunID]bool // the runs of the first shards, which define the reactions
}

// add adds the reaction of a run that was imported, or was there already, if the run is a shard of one:
// reaction/HASH/NUMBER.
func (a archivedReactions) add(run runstore.RunID) {
	if dir, _ := path.Split(string(run)); strings.HasPrefix(dir, "reaction/") {
		a.first[runstore.RunID(dir+"0")] = true
	}
}

// ScanRuns implements runstore.Mover.
func (a archivedReactions) ScanRuns(_ context.Context, after runstore.RunID, limit int) ([]runstore.RunID, error) {
	all := slices.Sorted(maps.Keys(a.first))
	at, found := slices.BinarySearch(all, after)
	if found {
		at++
	}
	return all[at:min(len(all), at+limit)], nil
}

// check returns an error if the archive has reactions, deregistered ones included: one that is registered
// again continues at its cursor.
func (a archivedReactions) check(ctx context.Context) error {
	all, err := tape.New(a, nil).DefinedReactions(ctx)
	if err != nil {
		return fmt.Errorf("list the reactions: %w", err)
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	words := make([]string, len(all))
	for i, id := range all {
		words[i] = shellWord(id)
	}
	return fmt.Errorf("the runs were imported, but cursors of reactions are positions in the feed of the source: before a server starts, run "+
		"tapestore reactions skip %[1]s, so that they handle no event again, or tapestore reactions replay %[1]s, so that they handle all", strings.Join(words, " "))
}

// openArchive returns the archive that a flag names: a directory, a file, an object of a bucket or "-" for
// the input. The caller closes it.
func openArchive(ctx context.Context, flag, name string, in io.Reader) (source *archive.Source, closeSource func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case name == "":
		return nil, nil, fmt.Errorf("name the archive with %s DIRECTORY, %s FILE or %s -", flag, flag, flag)
	case name == "-":
		return archive.Stream("-", in), nothing, nil
	case bucket.IsURL(name):
		object, err := bucket.OpenObject(ctx, name)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", flag, err)
		}
		return archive.Stream(bucket.Shown(name), object), object.Close, nil
	}
	if source, err = archive.Open(name); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", flag, err)
	}
	return source, nothing, nil
}
