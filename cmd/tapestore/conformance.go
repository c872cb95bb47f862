package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/conformance/gallery"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// errFound says that the command did its work and what it found is bad. The
// report tells what.
var errFound = errors.New("the store does not keep the contract")

func newConformanceCommand() *cobra.Command {
	var store, format, run string
	var broken bool
	cmd := &cobra.Command{
		Use:   "conformance (--store URL | --gallery)",
		Short: "Prove that a store keeps the contract",
		Long: `Run the conformance suite against a store and report every case by the guarantee
that it proves: passed, failed, or not applicable with the reason. The exit
status is 1 when a case failed.

Each case has an empty store of its own. For sqlite:FILE they are made in a
directory beside FILE and removed at the end; FILE itself is not touched.

--gallery runs the suite's own proof: stores that each break one rule, and the
case that catches each.`,
		Example: `  tapestore conformance --store memory:
  tapestore conformance --store sqlite:./tape.db --format json
  tapestore conformance --store sqlite:./tape.db --run 'I3/zombie'
  tapestore conformance --gallery`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			cmd.SetContext(ctx)
			switch {
			case broken && (store != "" || run != "" || format != "text"):
				return errors.New("--gallery goes with no other flag")
			case !broken && store == "":
				return errors.New("name a store with --store URL, or ask for the --gallery")
			case broken:
				return showGallery(cmd)
			}
			pattern, err := regexp.Compile(run)
			if err != nil {
				return fmt.Errorf("--run is no regular expression: %w", err)
			}
			show, ok := map[string]func(io.Writer, conformance.Report) error{"text": reportText, "json": reportJSON}[format]
			if !ok {
				return fmt.Errorf("--format is %q; it is text or json", format)
			}
			return runSuite(cmd, storeURL(store), pattern, show)
		},
	}
	f := cmd.Flags()
	f.StringVar(&store, "store", "", "store URL")
	f.StringVar(&format, "format", "text", "text or json")
	f.StringVar(&run, "run", "", "run only the cases whose guarantee/name matches this regular expression")
	f.BoolVar(&broken, "gallery", false, "show that the suite catches stores that are broken on purpose")
	return cmd
}

func runSuite(cmd *cobra.Command, url string, pattern *regexp.Regexp, show func(io.Writer, conformance.Report) error) error {
	conformance.RunChild() // before anything is made that a child would leave behind
	harness, done, err := harnessFor(cmd, url)
	if err != nil {
		return err
	}
	report := conformance.Execute(cmd.Context(), harness, pattern)
	if err := errors.Join(done(), cmd.Context().Err()); err != nil {
		return err
	}
	if len(report.Guarantees) == 0 {
		return fmt.Errorf("--run %q matches no case", pattern)
	}
	if err := show(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if report.Summary.Failed > 0 {
		return errFound
	}
	return nil
}

// harnessFor tells the suite how to make stores like the one at a URL.
func harnessFor(cmd *cobra.Command, url string) (h conformance.Harness, done func() error, err error) {
	u, err := runstore.ParseURL(url)
	if err != nil {
		return h, nil, err
	}
	none := func() error { return nil }
	switch u.Scheme {
	case "memory":
		return engines.Memory(), none, u.Known()
	case "sqlite":
		path, opts, err := sqlite.ParseURL(u)
		if err != nil {
			return h, nil, err
		}
		if path == sqlite.Memory {
			return engines.SQLiteInMemory(*opts), none, nil
		}
		if info, err := os.Stat(path); path == "" || err == nil && !info.Mode().IsRegular() {
			return h, nil, fmt.Errorf("--store: %q is no file; write sqlite::memory: or sqlite:FILE", path)
		}
		base, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".conformance-")
		if err != nil {
			return h, nil, fmt.Errorf("--store: %w", err)
		}
		dirs := caseDirs{base}
		opts.MustExist = false // each case has a file of its own
		if err := probe(cmd.Context(), base, opts); err != nil {
			return h, nil, errors.Join(err, dirs.remove())
		}
		return engines.SQLite(dirs.next, *opts), dirs.remove, nil
	default:
		return h, nil, fmt.Errorf("--store: there is no harness for %q; there is one for memory and sqlite", u.Scheme)
	}
}

// probe opens a store as the cases will, so that what is wrong with the place or
// the options is told once, and not as the verdict on a store.
func probe(ctx context.Context, dir string, opts *sqlite.Options) error {
	path := filepath.Join(dir, "probe.db")
	s, err := sqlite.Open(ctx, path, opts)
	if err != nil {
		return err
	}
	return s.Close()
}

// caseDirs gives every case a directory of its own, in one that is removed at the
// end.
type caseDirs struct{ base string }

func (d caseDirs) next(t conformance.T) string {
	dir, err := os.MkdirTemp(d.base, "case-")
	if err != nil {
		t.Fatalf("no directory for the case: %v", err)
	}
	return dir
}

func (d caseDirs) remove() error { return os.RemoveAll(d.base) }

func reportJSON(w io.Writer, r conformance.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func reportText(w io.Writer, r conformance.Report) error {
	fmt.Fprintf(w, "%s %s (%s), capabilities: %s\n", r.Engine, r.Version, r.Tier, strings.Join(r.Capabilities, ", "))
	for _, g := range r.Guarantees {
		fmt.Fprintf(w, "\n%s %s\n", g.ID, conformance.Title(g.ID))
		for _, c := range g.Cases {
			mark := map[conformance.Status]string{
				conformance.Passed: "passed", conformance.Failed: "FAILED", conformance.NotApplicable: "not applicable",
			}[c.Status]
			fmt.Fprintf(w, "  %-14s %-70s %6d ms\n", mark, c.Name, c.MS)
			if c.Reason != "" {
				fmt.Fprintf(w, "  %14s %s\n", "", strings.ReplaceAll(c.Reason, "\n", "\n"+strings.Repeat(" ", 17)))
			}
		}
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d not applicable\n", r.Summary.Passed, r.Summary.Failed, r.Summary.NotApplicable)
	return err
}

// showGallery prints one line for each broken store. They are checked side by
// side, because some of the cases wait for time to pass.
func showGallery(cmd *cobra.Command) error {
	stores := gallery.Stores()
	lines := make([]string, len(stores))
	var missed atomic.Int32
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, b := range stores {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			caught, err := gallery.Check(cmd.Context(), b)
			lines[i] = fmt.Sprintf("%s\tcaught by\t%s\n", b.Name, caught)
			if err != nil {
				missed.Add(1)
				lines[i] = fmt.Sprintf("%s\tNOT CAUGHT\t%v\n", b.Name, err)
			}
		})
	}
	wg.Wait()
	tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, strings.Join(lines, ""))
	if err := tw.Flush(); err != nil {
		return err
	}
	if n := missed.Load(); n > 0 {
		return fmt.Errorf("%d broken stores were not caught by the case that names their rule", n)
	}
	return nil
}
