package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance/version"
)

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "The version and the commit of this program", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return (&inspection{out: cmd.OutOrStdout()}).json(version.Read())
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tapestore %s (%s, %s)\n", version.String(), runtime.Version(), platform())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: version, commit and its time, Go, platform, module, whether the program is static")
	return cmd
}

// platform returns "linux/amd64".
func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }
