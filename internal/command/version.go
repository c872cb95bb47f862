package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/conformance/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version and the commit of this program", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tapestore %s (%s, %s)\n", version.String(), runtime.Version(), platform())
			return err
		},
	}
}

// platform returns "linux/amd64".
func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }
