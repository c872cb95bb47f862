package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
)

// errFound says that the command did its work and what it found is bad. The
// report tells what.
var errFound = errors.New("the store does not keep the contract")

// suiteFlags is what conformance was told.
type suiteFlags struct {
	store, engine, format, run string
	gallery                    bool
}

func newConformanceCommand() *cobra.Command {
	var given suiteFlags
	cmd := &cobra.Command{
		Use:   "conformance (--engine NAME | --store URL | --gallery)",
		Short: "Prove that a store keeps the contract",
		Long: `Run the conformance suite against a store and report every case by the guarantee
that it proves: passed, failed, or not applicable with the reason. The exit
status is 1 when a case failed.

--engine memory, sqlite, postgres, alloydb or bigtable starts what the engine
needs, says what that is, and ends it afterwards: PostgreSQL as a private server
of the programs on this machine (see tapestore emulators doctor), AlloyDB as a
stand-in for its service before such a server, reached through the real connector,
Bigtable as Google's emulator in this process, or with EMULATORS_BIGTABLE=local
as the program of the Cloud SDK.

--store URL runs the suite on an engine of yours. Each case has an empty store of
its own, and what is at the URL itself is not touched:
  memory:                 in this process
  sqlite:FILE             in files of a directory beside FILE, removed at the end
  postgres://…            in databases tapestore_… on that server, if the user may
  alloydb://user@host/…   create databases, else in schemas tapestore_case_… of the
                          URL's database; dropped at the end. Cases that kill the
                          server do not apply. An instance's name instead of a host
                          cannot be given. Allow for 100 connections.
  bigtable://P/I/TABLE    in tables TABLE-case-… of instance I in project P, deleted at
                          the end; with ?emulator=HOST:PORT in tables of an emulator

--gallery runs the suite's own proof: stores that each break one rule, and the
case that catches each.`,
		Example: `  tapestore conformance --engine postgres
  tapestore conformance --store sqlite:./tape.db --format json
  tapestore conformance --store postgres://tape@db.internal/tape --run 'I3/zombie'
  tapestore conformance --gallery`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conformance.RunChild() // before anything is made that a child would leave behind
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // so that the second signal kills
			cmd.SetContext(ctx)
			if given.gallery {
				if given != (suiteFlags{gallery: true, format: "text"}) {
					return errors.New("--gallery goes with no other flag")
				}
				return showGallery(cmd)
			}
			return runSuite(cmd, given)
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.engine, "engine", "", "start this engine: memory, sqlite, postgres, alloydb or bigtable")
	f.StringVar(&given.store, "store", "", "store URL")
	f.StringVar(&given.format, "format", "text", "text or json")
	f.StringVar(&given.run, "run", "", "run only the cases whose guarantee/name matches this regular expression")
	f.BoolVar(&given.gallery, "gallery", false, "show that the suite catches stores that are broken on purpose")
	return cmd
}

// runSuite checks all that was given before it starts anything.
func runSuite(cmd *cobra.Command, given suiteFlags) error {
	if given.store != "" && given.engine != "" {
		return errors.New("--engine starts a server and --store names one; give one of the two")
	}
	pattern, err := regexp.Compile(given.run)
	if err != nil {
		return fmt.Errorf("--run is no regular expression: %w", err)
	}
	if !matchesACase(pattern) {
		return fmt.Errorf("--run %q matches no case", pattern)
	}
	show, ok := reports[given.format]
	if !ok {
		return fmt.Errorf("--format is %q; it is text or json", given.format)
	}
	on, err := subjectOf(cmd.Context(), given)
	if err != nil {
		return err
	}
	if on.about != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), on.about)
	}
	report := conformance.Execute(cmd.Context(), on.harness, pattern)
	if err := on.close(); err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		return errors.New("interrupted; what was started is stopped, and nothing is reported")
	}
	if err := show(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if report.Summary.Failed > 0 {
		return errFound
	}
	return nil
}

func matchesACase(pattern *regexp.Regexp) bool {
	for _, c := range conformance.Cases() {
		if pattern.MatchString(c.Guarantee + "/" + c.Name) {
			return true
		}
	}
	return false
}
