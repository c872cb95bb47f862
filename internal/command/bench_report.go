package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/show"
	"github.com/tapestore/tapestore/conformance/version"
)

// errWorse reports that bench compare --fail found a metric that became worse.
var errWorse = errors.New("the second report is worse")

// complete adds to a report what the runner does not know, and hides the secrets of a store's URL.
func (given benchFlags) complete(r *bench.Report, machine bench.Machine, parts []string) {
	r.Command, r.Version, r.Machine = given.commandLine(parts), version.String(), machine
	postgres := func(s bench.System) bool { return s.Engine == "postgres" && s.Missing == "" }
	if slices.ContainsFunc(r.Systems, postgres) && !slices.ContainsFunc(r.Systems, func(s bench.System) bool { return s.Peer }) && given.store == "" {
		r.Notes = append(r.Notes, bench.Note{Text: "other lease libraries are measured beside the store by: go -C bench/peers run ./cmd/tapestore bench --engine postgres"})
	}
	hide := func(text *string) { *text = hideArguments(*text, []string{given.store}) }
	for i := range r.Faults {
		hide(&r.Faults[i].Text)
	}
	for i := range r.Notes {
		hide(&r.Notes[i].Text)
	}
	for i := range r.Systems {
		hide(&r.Systems[i].Missing)
	}
}

// commandLine returns a shell command for the same run, without secrets.
func (given benchFlags) commandLine(parts []string) string {
	words := append([]string{"tapestore", "bench"}, parts...)
	switch {
	case given.all:
		words = append(words, "--all")
	case given.store != "":
		words = append(words, "--store", shellWord(shownURL(given.store)))
	default:
		words = append(words, "--engine", strings.Join(given.engines, ","))
	}
	if given.scale != bench.Standard().Name {
		words = append(words, "--scale", given.scale)
	}
	if given.rounds > 0 {
		words = append(words, "--rounds", fmt.Sprint(given.rounds))
	}
	if given.format != "text" {
		words = append(words, "--format", given.format)
	}
	if given.out != "" {
		words = append(words, "--out", shellWord(given.out))
	}
	return strings.Join(words, " ")
}

// judgeBench returns the error that determines the exit status of a run: faults and, if CI is set,
// missing engines.
func judgeBench(r bench.Report) error {
	var faults []error
	for _, f := range r.Faults {
		faults = append(faults, errors.New(oneLine(fmt.Errorf("%s %s: %s", f.System, f.Part, f.Text))))
	}
	for _, s := range r.Systems {
		if s.Missing != "" && missingFails() {
			faults = append(faults, fmt.Errorf("%s is missing, which fails where CI is set: %s", s.Name, s.Missing))
		}
	}
	return errors.Join(faults...)
}

// benchOutput is the destination of a report. Its temporary files are created before the run, so
// that an unwritable directory is found before hours of measuring, and renamed after it.
type benchOutput struct {
	stdout io.Writer
	files  []benchFile
}

type benchFile struct {
	path  string
	temp  *os.File
	write func(io.Writer, bench.Report) error
}

// benchFormats are the functions that write a report, by the name of the format.
var benchFormats = map[string]func(io.Writer, bench.Report) error{"text": show.Text, "json": show.JSON, "html": show.HTML}

func newBenchOutput(stdout io.Writer, format, path string) (*benchOutput, error) {
	write, ok := benchFormats[format]
	if !ok {
		return nil, fmt.Errorf("--format is %q; it is text, json or html", format)
	}
	if format == "html" && path == "" {
		path = "bench.html"
	}
	o := &benchOutput{stdout: stdout}
	if path == "" {
		o.files = []benchFile{{write: write}}
		return o, nil
	}
	o.files = []benchFile{{path: path, write: write}}
	if format == "html" {
		beside := strings.TrimSuffix(path, filepath.Ext(path)) + ".json"
		if beside == path {
			return nil, fmt.Errorf("--out is %q, the name of the raw samples beside the page; name the page, such as bench.html", path)
		}
		o.files = append(o.files, benchFile{path: beside, write: show.JSON})
	}
	for i := range o.files {
		f := &o.files[i]
		if info, err := os.Stat(f.path); err == nil && info.IsDir() {
			o.discard()
			return nil, fmt.Errorf("--out: %s is a directory", f.path)
		}
		var err error
		if f.temp, err = os.CreateTemp(filepath.Dir(f.path), ".tapestore-bench-"); err != nil {
			o.discard()
			return nil, fmt.Errorf("--out: %w", err)
		}
	}
	return o, nil
}

// write writes the report to all files, then renames them.
func (o *benchOutput) write(r bench.Report) error {
	for _, f := range o.files {
		if f.temp == nil {
			return f.write(o.stdout, r)
		}
		// A temporary file is private; a report should have the usual permissions.
		if err := errors.Join(f.write(f.temp, r), f.temp.Chmod(0o644), f.temp.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	for _, f := range o.files {
		if err := os.Rename(f.temp.Name(), f.path); err != nil {
			return err
		}
	}
	return nil
}

// discard removes the temporary files that were not renamed.
func (o *benchOutput) discard() {
	for _, f := range o.files {
		if f.temp != nil {
			_ = f.temp.Close()
			_ = os.Remove(f.temp.Name()) // after write the file does not exist
		}
	}
}

// paths returns the names of the files.
func (o *benchOutput) paths() (all []string) {
	for _, f := range o.files {
		if f.path != "" {
			all = append(all, f.path)
		}
	}
	return all
}

func newBenchCompareCommand() *cobra.Command {
	var fail bool
	cmd := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Report what changed between two runs, beyond the noise of their samples",
		Long: `Compare two reports of bench --format json, or the files beside its pages. Results are matched
by part, group, system, side and setting, and the samples of each metric are compared by the
Mann-Whitney U test, which assumes nothing about their distribution. So many tests find some
differences by chance: of those reported as changes at most 5 % are expected to be (Benjamini
and Hochberg). With less than four samples on a side no change can be seen.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var reports [2]bench.Report
			for i, path := range args {
				file, err := os.Open(path)
				if err != nil {
					return err
				}
				reports[i], err = show.ReadJSON(file)
				_ = file.Close() // the file was only read
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			found, err := show.Compare(cmd.OutOrStdout(), reports[0], reports[1])
			if err != nil {
				return err
			}
			if n := len(found.Of(show.Worse)); fail && n > 0 {
				return fmt.Errorf("%w by %d of its metrics", errWorse, n)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&fail, "fail", false, "end with status 1 if something became worse")
	return cmd
}
