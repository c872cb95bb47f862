package command

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/tapestore/tapestore/conformance/version"
)

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands into a directory", Args: cobra.ExactArgs(1),
		Long: `Write the manual pages of all commands into a directory, which is created if it is missing:
one page for each command, tapestore-serve.1 for tapestore serve.`,
		Example: `  tapestore man /usr/local/share/man/man1`,
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			info := version.Read()
			date, err := time.Parse(time.RFC3339, info.CommitTime)
			if err != nil {
				date = time.Unix(0, 0).UTC() // the same pages from the same program
			}
			header := &doc.GenManHeader{Section: "1", Date: &date, Source: "Tapestore " + info.Version, Manual: "Tapestore"}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("the manual pages: %w", err)
			}
			return nil
		},
	}
}
