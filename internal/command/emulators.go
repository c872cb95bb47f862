package command

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/emulators"
)

func newEmulatorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "emulators",
		Short: "Start engines on this machine, and tell what it takes",
		Long: `Start the engines that need a server, without Docker and without configuration:
PostgreSQL as a private server of the programs on this machine, AlloyDB as a
stand-in for its service before such a server. For work and tests: a private
server trusts whoever connects from this machine.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do: up postgres, up alloydb, up all, or doctor")
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
			for _, f := range emulators.Doctor(cmd.Context()) {
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
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "\nmemory and sqlite are part of this program. alloydb needs what postgres needs. One tier of an engine is enough.")
			return err
		},
	}
}
