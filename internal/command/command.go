// Package command is the command tapestore: the program cmd/tapestore is no more
// than a call of Main, and so is the one in the module containers, which can start
// engines in containers besides.
package command

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	_ "github.com/tapestore/tapestore/runstore/all" // every engine's URL scheme
)

// Main runs the command with the arguments of the process, and ends the process
// with status 1 when it fails.
func Main() {
	if err := newRoot().ExecuteContext(context.Background()); err != nil {
		given := append(os.Args[1:len(os.Args):len(os.Args)], os.Getenv(storeVariable), os.Getenv("TAPE_DB"))
		fmt.Fprintln(os.Stderr, "tapestore:", hideArguments(oneLine(err), given))
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tapestore",
		Short:         "The storage of Tape: serve it, check it, look into it",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCommand(), newConformanceCommand(), newBenchCommand(), newInspectCommand(), newEpochCommand(), newGCCommand(), newEmulatorsCommand(), newVersionCommand())
	return root
}

// oneLine is an error's text without the line breaks of those that tell of several,
// and without what they tell twice.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
