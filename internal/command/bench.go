package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	"github.com/tapestore/tapestore/bench/show"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	all, list                 bool
	engines                   []string
	store, scale, format, out string
	rounds                    int
}

func newBenchCommand() *cobra.Command {
	var given benchFlags
	cmd := &cobra.Command{
		Use:   "bench [PART...] (--all | --engine NAME[,NAME...] | --store URL)",
		Short: "Measure what leases and fenced commits cost, beside the best hand-written statements",
		Long: `Measure contention for leases, their handover, commits, reads, heartbeats and the wire
protocol on one engine after the other. The sides of a comparison take turns in one run, and
what a store acknowledged is read back: counts that disagree are a fault, which makes the exit
status 1. bench list prints the parts; without a PART all are measured.

--all starts every engine that keeps data in turn, with the durability of production, and ends
it afterwards; --engine some of them, or memory. One that this machine lacks is a row of the
report that says so; where CI is set it is a failure. Figures of emulators are shown apart.

--store URL measures an engine of yours. The benchmark makes runs of its own there, and they
stay: name a store that is made for the purpose. TAPE_STORE is not read, so that no run writes
by accident into the store that other commands use. A password need not be in the URL, where
the list of processes shows it: Postgres and AlloyDB take it from PGPASSWORD, from the file of
PGPASSFILE or from ~/.pgpass.

--scale smoke takes seconds and measures nothing but that everything works, standard 12
to 15 minutes for --all on two cores, full some hours. --rounds is the number of samples of
each metric, on emulators too, which otherwise have half of the scale's number: bench compare
needs four to see a change, and more where it compares many.

--format text and json go to standard output, or to the file of --out. --format html writes
one page that needs nothing else to the file of --out (bench.html), and the raw samples beside
it with the extension .json. A file is replaced once the report is complete; --out may also name
a device or a pipe. A report that cannot be written is printed as text. Ctrl-C ends a run early,
with status 1, and what was measured is reported.`,
		Example: `  tapestore bench --all --format html
  tapestore bench cas commit --engine sqlite,postgres
  tapestore bench --store postgres://tape@db.internal/bench --format json --out after.json
  tapestore bench compare before.json after.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			if given.list {
				return listParts(cmd)
			}
			return runBench(ctx, cmd, given, args)
		},
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&given.all, "all", false, "measure every engine but memory in turn")
	f.StringSliceVar(&given.engines, "engine", nil, "measure these engines: "+benchEngines())
	f.StringVar(&given.store, "store", "", "measure the store at this URL; what the benchmark writes stays there")
	f.StringVar(&given.scale, "scale", bench.Standard().Name, "size of the run: "+scaleNames())
	f.IntVar(&given.rounds, "rounds", 0, "samples of each metric; 0 is the scale's number")
	f.StringVar(&given.format, "format", "text", "text, json or html")
	f.StringVar(&given.out, "out", "", "file of the report; with --format html bench.html if empty")
	f.BoolVar(&given.list, "list", false, "print the parts, and measure nothing")
	cmd.AddCommand(newBenchListCommand(), newBenchCompareCommand())
	return cmd
}

func newBenchListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Print the parts of the benchmark, with what each measures", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listParts(cmd) },
	}
}

// runBench validates all flags before it starts anything.
func runBench(ctx context.Context, cmd *cobra.Command, given benchFlags, parts []string) error {
	starters, err := given.starters()
	if err != nil {
		return err
	}
	scale, err := given.scaled()
	if err != nil {
		return err
	}
	for _, name := range parts {
		if !slices.Contains(bench.PartNames(), name) {
			return fmt.Errorf("there is no part %q; there are %s", name, strings.Join(bench.PartNames(), ", "))
		}
	}
	out, err := newBenchOutput(cmd.OutOrStdout(), given.format, given.out)
	if err != nil {
		return err
	}
	defer out.discard()
	machine := bench.DescribeMachine() // before the engines use the disk
	p := newBenchProgress(cmd.ErrOrStderr())
	report, err := bench.Run(ctx, starters, bench.Options{Parts: parts, Scale: scale, Progress: p.show})
	p.wipe()
	if err != nil {
		return err
	}
	given.complete(&report, machine, parts)
	return errors.Join(finishBench(out, cmd.ErrOrStderr(), report), interruption(ctx))
}

// finishBench writes a report, and returns the error that determines the exit status. The error
// names every fault, also if the report cannot be written.
func finishBench(out *benchOutput, stderr io.Writer, report bench.Report) error {
	wrote, err := out.write(report)
	for _, path := range wrote {
		fmt.Fprintln(stderr, "wrote", path)
	}
	if err != nil && len(wrote) == 0 {
		err = errors.Join(err, out.rescue(stderr, report))
	}
	return errors.Join(err, judgeBench(report))
}

func interruption(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return errors.New("interrupted; what was started is stopped, and the report holds what was measured")
}

// starters returns the engines that the flags name.
func (given benchFlags) starters() ([]bench.Starter, error) {
	named := 0
	for _, is := range []bool{given.all, len(given.engines) > 0, given.store != ""} {
		if is {
			named++
		}
	}
	switch {
	case named == 0:
		return nil, errors.New("name engines with --engine or a store with --store URL, or ask for --all engines")
	case named > 1:
		return nil, errors.New("give one of --all, --engine and --store")
	case given.all:
		return slices.DeleteFunc(engines.Starters(), func(s bench.Starter) bool { return s.Name == "memory" }), nil
	case given.store != "":
		url, err := storeURL(given.store)
		if err != nil {
			return nil, fmt.Errorf("--store %w", err)
		}
		return []bench.Starter{engines.At(url)}, nil
	}
	for _, name := range given.engines {
		if len(engines.Named(name)) == 0 {
			return nil, fmt.Errorf("--engine is %q; it is %s", name, benchEngines())
		}
	}
	return engines.Named(given.engines...), nil
}

// scaled returns the scale that the flags name.
func (given benchFlags) scaled() (bench.Scale, error) {
	i := slices.IndexFunc(bench.Scales(), func(s bench.Scale) bool { return s.Name == given.scale })
	if i < 0 {
		return bench.Scale{}, fmt.Errorf("--scale is %q; it is %s", given.scale, scaleNames())
	}
	scale := bench.Scales()[i]
	if given.rounds < 0 {
		return bench.Scale{}, fmt.Errorf("--rounds is %d; it is 1 or more, or 0 for the scale's number", given.rounds)
	}
	if given.rounds > 0 {
		scale.Rounds, scale.ExactRounds = given.rounds, true
	}
	return scale, nil
}

// benchEngines returns "memory, sqlite, … or spanner".
func benchEngines() string {
	var names []string
	for _, s := range engines.Starters() {
		names = append(names, s.Name)
	}
	return alternatives(names)
}

func scaleNames() string {
	var names []string
	for _, s := range bench.Scales() {
		names = append(names, s.Name)
	}
	return alternatives(names)
}

// alternatives returns "a, b or c".
func alternatives(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func listParts(cmd *cobra.Command) error {
	return show.Parts(cmd.OutOrStdout(), bench.Parts())
}
