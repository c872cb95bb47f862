package command

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/show"
	"github.com/tapestore/tapestore/conformance/version"
)

// errWorse reports that bench compare --fail found a metric that became worse, or that the second
// report hides whether one did.
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

func newBenchCompareCommand() *cobra.Command {
	var fail bool
	cmd := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Report what changed between two runs, beyond the noise of their samples",
		Long: `Compare two reports of bench --format json, or the files beside its pages. Results are matched
by part, group, system, side and setting, and by the size that was reached where time for it was
limited: two sizes of which one is more than twice the other are not compared. The samples of each metric are compared by the
Mann-Whitney U test, which assumes nothing about their distribution. So many tests find some
differences by chance: of those reported as changes at most 5 % are expected to be (Benjamini
and Hochberg). With less than four samples on a side no change can be seen.

--fail also ends with status 1 if B has faults, if its run was interrupted, or if it lacks results
of A although it measured their part of their system at the same scale. Results that B was not
to measure, because its scale, parts or engines are others, are listed and do not fail.`,
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
			if failures := found.Failures(); fail && len(failures) > 0 {
				return fmt.Errorf("%w: %s", errWorse, strings.Join(failures, ", "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&fail, "fail", false, "end with status 1 if something became worse, or results are lost")
	return cmd
}
