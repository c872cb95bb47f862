package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/emulators/doctor"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/internal/wrap"
)

func newEmulatorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "emulators",
		Short: "Start engines on this machine, and report what is missing",
		Long: `Start the engines that need a server, without Docker and without configuration:
PostgreSQL as a private server of the programs on this machine, AlloyDB as a
stand-in for its service before such a server, Bigtable and Spanner as Google's
emulators. For work and tests: a private server trusts whoever connects from this
machine.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do: up " + strings.Join(slices.Concat(upEngines, []string{"all"}), ", up ") + ", or doctor")
		},
	}
	cmd.AddCommand(newUpCommand(), newDoctorCommand())
	return cmd
}

func newDoctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What can be started here, and what to install for the rest",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "ENGINE\tTIER\tFOUND\tWHERE, OR WHAT TO DO")
			for _, f := range doctor.Run(cmd.Context()) {
				found, where := "no", f.Problem
				if f.Found {
					found, where = f.Version, f.Where
				} else if f.Install != "" {
					where += "; to have it: " + f.Install
				}
				if found == "" {
					found = "yes"
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", f.Engine, f.Tier, found, where)
			}
			if err := tw.Flush(); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, "\nmemory and sqlite are part of this program. alloydb needs what postgres needs. One tier of an engine is enough.")
			return printKnownGaps(out)
		},
	}
}

// printKnownGaps prints the differences between the emulators and the services.
func printKnownGaps(out io.Writer) error {
	err := tellDifferencesOf(out, "Bigtable", "gate", bigtableemulator.KnownGaps())
	return errors.Join(err, tellDifferencesOf(out, "Spanner", "proxy", spanneremulator.KnownGaps()))
}

func tellDifferencesOf(out io.Writer, engine, front string, all []emulators.KnownGap) error {
	_, err := fmt.Fprintf(out, "\nThe emulator of %s is not the service; a %s in front of it makes up for some of that\n", engine, front)
	for _, d := range all {
		text := "emulator: " + d.Emulator + "\nservice: " + d.Service + "\nhere: " + d.Handled
		if len(d.Cases) > 0 {
			text += "\ncases: " + strings.Join(d.Cases, ", ")
		}
		for i, line := range strings.Split(text, "\n") {
			indent := map[bool]string{true: "  ", false: "    "}[i == 0]
			_, err = fmt.Fprintln(out, wrap.Text(line, 96, indent))
		}
	}
	return err
}
