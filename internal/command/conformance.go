package command

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/internal/report"
	"github.com/tapestore/tapestore/tape"
)

// errFound and its variants report that the command worked but its findings are bad; the report has
// the details.
var (
	errFound         = errors.New("the store does not keep the contract")
	errFoundProtocol = errors.New("the server does not keep the protocol")
)

// suiteFlags are the flags of conformance.
type suiteFlags struct {
	store, engine, format, run string
	all, full, gallery, list   bool
	vectors                    bool

	// Flags of the protocol's suite.
	protocol               bool
	address, probes, fence string
}

func newConformanceCommand() *cobra.Command {
	var given suiteFlags
	cmd := &cobra.Command{
		Use:   "conformance (--all | --engine NAME | --store URL | --gallery | --list | --vectors | --protocol ADDRESS)",
		Short: "Prove that a store keeps the contract, or a server the protocol",
		Long: `Run the conformance suite against a store and report every case by the guarantee
that it proves: passed, failed, or not applicable with the reason. The exit
status is 1 when a case failed. Ctrl-C ends it early, with status 1, and what was
finished is reported.

--all does what --engine does for every engine in turn, and reports them together:
guarantees by engines, what failed, what does not apply and why, and what such a run
cannot prove. An engine that this machine lacks is reported as missing; where CI is
set, that too is a failure. --format html makes of it one page that needs nothing
else, and does so for a single engine or store as well.

--engine memory, sqlite, postgres, alloydb, bigtable or spanner starts what the engine
needs, says what that is, and ends it afterwards: PostgreSQL as a private server
of the programs on this machine (see tapestore emulators doctor), AlloyDB as a
stand-in for its service before such a server, reached through the real connector,
Bigtable as Google's emulator in this process, or with EMULATORS_BIGTABLE=local
as the program of the Cloud SDK, Spanner as two emulators, programs of the Cloud
SDK: one lets the newest transaction go on, for takeovers that overtake a writer.

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
  spanner://P/I/DATABASE  in databases DATABASE-case-… of instance I in project P, dropped
                          at the end; DATABASE is cut to 12 letters. An instance has room
                          for 100, and each takes the service some seconds. With
                          ?emulator=HOST:PORT in databases of an emulator. What create=
                          and role= say is about the database at the URL, not theirs.

On an engine that is slow on this machine (Spanner's emulator, AlloyDB's stand-in), cases
repeat less than they could, and the report says which; --full repeats all.

--protocol runs another suite: Tape's wire protocol by gRPC calls alone, its guarantees
and its client-visible checks by number. With an ADDRESS it tests the server
there, whatever it is made of: HOST:PORT, tape://HOST:PORT, or tapes://HOST:PORT for TLS.
Its cases use names of their own, but the server should not be in use. --probes names its
HTTP probes. With --engine, --store or --all it tests this program's own server on that
engine, in the mode of --fence.

--gallery runs the suite's own proof: stores that each break one rule, and the
case that catches each.

--list runs nothing. It prints every case by the guarantee that it proves: what
happens, what must hold, which bug the case catches, and what the case needs. --run
chooses cases, --format json is for programs, and --protocol lists those of the protocol.

--vectors runs nothing. It prints how each engine and each kind of lease keeps its leases:
substrate, payload, enforcement, token and handoff; and the mutation targets, which are
generated from the contract's interface: a case presents a stale token to each of them.`,
		Example: `  tapestore conformance --all
  tapestore conformance --all --format html > conformance.html
  tapestore conformance --engine postgres
  tapestore conformance --store sqlite:./tape.db --format json
  tapestore conformance --store postgres://tape@db.internal/tape --run 'I3/zombie'
  tapestore conformance --gallery
  tapestore conformance --list --run 'I3/zombie'
  tapestore conformance --protocol localhost:7878
  tapestore conformance --protocol --all --fence connection`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given.takeAddress(args, cmd.Flags().Changed("fence")); err != nil {
				return err
			}
			if given.list {
				return listCases(cmd, given)
			}
			if given.vectors {
				return showVectors(cmd, given)
			}
			conformance.RunChild() // before creating anything that a child would leave behind
			ctx, stop := interruptible(cmd)
			defer stop()
			cmd.SetContext(ctx)
			if given.all && (given.engine != "" || given.store != "" || given.gallery) {
				return errors.New("--all runs every engine; it does not go with --engine, --store or --gallery")
			}
			if given.gallery {
				if given != (suiteFlags{gallery: true, format: "text", fence: given.fence}) || cmd.Flags().Changed("fence") {
					return errors.New("--gallery goes with no other flag")
				}
				return showGallery(cmd)
			}
			if given.full {
				if err := os.Setenv(conformance.EffortVariable, "full"); err != nil { // for this process and its children
					return err
				}
			}
			return runSuite(cmd, given)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&given.all, "all", false, "start every engine in turn, and report them together")
	f.StringVar(&given.engine, "engine", "", "start this engine: "+engineNames())
	f.StringVar(&given.store, "store", "", "store URL")
	f.StringVar(&given.format, "format", "text", "text, json or html")
	f.StringVar(&given.run, "run", "", "run only the cases whose guarantee/name matches this regular expression")
	f.BoolVar(&given.full, "full", false, "repeat as much as the suite can on engines that are slow too, such as Spanner's emulator")
	f.BoolVar(&given.protocol, "protocol", false, "test a server of Tape's wire protocol: the one at ADDRESS, or this program's own on --engine, --store or --all")
	f.StringVar(&given.probes, "probes", "", "with --protocol ADDRESS: URL of the server's HTTP probes, such as http://localhost:7879")
	f.StringVar(&given.fence, "fence", tape.FencePresented.String(), "with --protocol: mode of this program's own server: presented, required or connection")
	f.BoolVar(&given.list, "list", false, "print what each case is about, and run none")
	f.BoolVar(&given.vectors, "vectors", false, "print how each engine and each kind of lease keeps leases, and run no case")
	f.BoolVar(&given.gallery, "gallery", false, "show that the suite catches stores that are broken on purpose")
	return cmd
}

// runSuite validates all flags before it starts anything.
func runSuite(cmd *cobra.Command, given suiteFlags) error {
	if given.store != "" && given.engine != "" {
		return errors.New("--engine starts a server and --store names one; give one of the two")
	}
	pattern, err := regexp.Compile(given.run)
	if err != nil {
		return fmt.Errorf("--run is no regular expression: %w", err)
	}
	cases := storeSuite(pattern)
	if given.protocol {
		if cases, err = protocolSuite(pattern, given.fence); err != nil {
			return err
		}
	}
	if cases.cases == 0 {
		return fmt.Errorf("--run %q matches no case", pattern)
	}
	show, ok := formats[given.format]
	if !ok {
		return fmt.Errorf("--format is %q; it is text, json or html", given.format)
	}
	run := newRun(given)
	if given.all {
		run.Engines, run.NotRun = everyEngine(cmd.Context(), inOrder(starters), cases, newProgress(cmd.ErrOrStderr(), cases.cases))
	} else if given.address != "" {
		if run.Engines, err = oneServer(cmd, given, pattern, newProgress(cmd.ErrOrStderr(), cases.cases)); err != nil {
			return err
		}
	} else if run.Engines, err = oneEngine(cmd, given, cases, newProgress(cmd.ErrOrStderr(), cases.cases)); err != nil {
		return err
	}
	run.MS = time.Since(run.Began).Milliseconds()
	var interrupted error
	if cmd.Context().Err() != nil {
		interrupted = errors.New("interrupted; what was started is stopped, and the report holds what was finished")
	}
	if given.all {
		return errors.Join(show.many(cmd.OutOrStdout(), run), judge(run), interrupted)
	}
	if err := show.one(cmd.OutOrStdout(), run); err != nil || interrupted != nil {
		return errors.Join(err, interrupted)
	}
	if run.Sum().Failed > 0 && given.protocol {
		return errFoundProtocol
	}
	if run.Sum().Failed > 0 {
		return errFound
	}
	return nil
}

// oneEngine runs the suite on the named engine or store.
func oneEngine(cmd *cobra.Command, given suiteFlags, cases suite, p *progress) ([]report.Engine, error) {
	began := time.Now()
	on, err := subjectOf(cmd.Context(), given)
	if err != nil && cmd.Context().Err() != nil {
		return nil, errors.New("interrupted before the first case; what was started is stopped")
	}
	if err != nil {
		return nil, err
	}
	if on.about != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), on.about)
	}
	found, err := cases.execute(cmd.Context(), on.harness, p.done)
	p.wipe()
	if err := errors.Join(err, on.close()); err != nil {
		return nil, err
	}
	return []report.Engine{{Name: found.Engine, Started: on.about, MS: time.Since(began).Milliseconds(), Report: &found}}, nil
}
