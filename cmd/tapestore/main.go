// Command tapestore serves, checks and shows the stores of Tape.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	_ "github.com/tapestore/tapestore/runstore/all" // every engine's URL scheme
)

func main() {
	root := &cobra.Command{
		Use:           "tapestore",
		Short:         "The storage of Tape: serve it, check it, look into it",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCommand(), newConformanceCommand(), newInspectCommand())
	if err := root.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "tapestore:", err)
		os.Exit(1)
	}
}
