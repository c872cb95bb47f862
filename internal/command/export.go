package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/internal/dirsync"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

func newExportCommand() *cobra.Command {
	var url, to string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the runs of a store to an archive",
		Long: `Write every run of a store, listed or not, to an archive: a file, a directory, or standard
output with --to -. It takes no lease and writes nothing to the store, which may be in use: each
run is exported in one state, different runs in states of different times.

An existing directory, or a name that ends with a slash, gets files of about 64 MiB. An export into
a directory that was interrupted continues where it stopped when it is repeated. A file appears
under its name when it is complete; an interrupted export into a file begins anew. Only its user can
read it: an archive is as secret as the store. A second export to the same name is refused.

The exit status is 0 when the archive is complete, otherwise 1. What an archive has, and how to
move agents with it, is in docs/moving.md.`,
		Example: `  tapestore export --store sqlite:./tape.db --to backup/
  tapestore export --store postgres://user@host/database --to - | gzip >tape.jsonl.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(url, os.LookupEnv)
			switch {
			case err != nil:
				return err
			case to == "":
				return errors.New("name the archive with --to DIRECTORY, --to FILE or --to -")
			}
			warnOfRestore(ctx, address, cmd.ErrOrStderr())
			store, err := runstore.Open(ctx, readOnly(address))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, store.Close()) }()
			p := newMoveProgress(cmd.ErrOrStderr())
			opts := &archive.ExportOptions{Label: shownURL(address), Progress: func(c archive.Counts) { p.show("exported " + countsText(c)) }}
			counts, err := exportTo(ctx, store, to, cmd.OutOrStdout(), opts)
			p.end()
			if errors.Is(err, archive.ErrComplete) {
				return fmt.Errorf("--to: %w", err)
			}
			if err != nil {
				return fmt.Errorf("the export did not finish, after %s: %w", countsText(counts), err)
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "exported %s\n", countsText(counts))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&to, "to", "", "directory or file to write, - for standard output")
	return cmd
}

// warnOfRestore warns of an SQLite file whose epoch the next program that writes raises. An export opens the
// file without that step, so the archive names the epoch of before. Other engines raise it at any opening.
func warnOfRestore(ctx context.Context, address string, out io.Writer) {
	u, err := runstore.ParseURL(readOnly(address))
	check := admin.Of("sqlite").Check
	if err != nil || u.Scheme != "sqlite" || check == nil {
		return
	}
	for _, f := range check(ctx, u) {
		if f.KeepClosed {
			fmt.Fprintf(out, "warning: %s. If the archive is to replace the store, run tapestore epoch raise first, and export anew\n", oneLine(errors.New(f.Found)))
		}
	}
}

// exportTo writes an archive to out for "-", to a directory, or to a file.
func exportTo(ctx context.Context, store runstore.RunStore, to string, out io.Writer, opts *archive.ExportOptions) (archive.Counts, error) {
	if to == "-" {
		return archive.Export(ctx, store, out, opts)
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") || strings.HasSuffix(to, string(filepath.Separator)) {
		return archive.ExportDir(ctx, store, to, opts)
	}
	unlock, err := archive.Lock(to)
	if err != nil {
		return archive.Counts{}, fmt.Errorf("--to: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(to); err == nil {
		return archive.Counts{}, fmt.Errorf("--to: %q exists already; name another file, or delete it", to)
	}
	partial := to + ".partial"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an export that was killed
		return archive.Counts{}, fmt.Errorf("--to: %w", err)
	}
	f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return archive.Counts{}, fmt.Errorf("--to: %w", err)
	}
	counts, err := archive.Export(ctx, store, f, opts)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return counts, errors.Join(err, os.Remove(partial))
	}
	return counts, publish(partial, to, dirsync.Sync)
}

// publish gives a complete file its name. sync makes the names in a directory durable.
func publish(partial, to string, sync func(dir string) error) error {
	if err := os.Rename(partial, to); err != nil {
		return err
	}
	return sync(filepath.Dir(to))
}

// countsText returns counts in words.
func countsText(c archive.Counts) string {
	return fmt.Sprintf("%d runs, %d records, %d events", c.Runs, c.Records, c.Events)
}

// progressEvery is how often a terminal shows the progress. 200 ms: a person sees it move.
const progressEvery = 200 * time.Millisecond

// moveProgress shows one line of progress on a terminal, and nothing elsewhere.
type moveProgress struct {
	to    io.Writer
	last  time.Time
	shown int
}

func newMoveProgress(to io.Writer) *moveProgress {
	if f, ok := to.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &moveProgress{to: to}
		}
	}
	return &moveProgress{}
}

// show replaces the line.
func (p *moveProgress) show(line string) {
	if p.to == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.to, "\r%-*s", p.shown, line)
	p.shown = len(line)
}

// feed shows for how many runs the feed is behind.
func (p *moveProgress) feed(runs int) {
	p.show(fmt.Sprintf("waiting for the feed to show the events of %d runs", runs))
}

// end removes the line.
func (p *moveProgress) end() {
	if p.shown > 0 {
		fmt.Fprintf(p.to, "\r%*s\r", p.shown, "")
	}
}
