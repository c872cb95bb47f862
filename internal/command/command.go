// Package command implements the command tapestore. The program cmd/tapestore only calls Main; so
// does the program in the module containers, which can also start engines in containers.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	_ "github.com/tapestore/tapestore/runstore/all" // registers every engine's URL scheme
)

// Main runs the command with the arguments of the process, and exits with status 1 if the command
// fails, or with the status of an exitError. A command also fails if the reader of its output has gone
// before its end.
func Main() {
	root := newRoot()
	ctx := watchReaders(context.Background(), root)
	err := root.ExecuteContext(ctx)
	if gone := context.Cause(ctx); gone != nil && !errors.Is(err, gone) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		given := append(os.Args[1:len(os.Args):len(os.Args)], os.Getenv(storeVariable), os.Getenv(configVariable), os.Getenv("TAPE_DB"))
		fmt.Fprintln(os.Stderr, "tapestore:", hideArguments(oneLine(err), given))
		status := 1
		var exit *exitError
		if errors.As(err, &exit) {
			status = exit.status
		}
		os.Exit(status)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tapestore",
		Short:         "The storage of Tape: serve it, check it, look into it",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCommand(), newConfigCommand(), newConformanceCommand(), newBenchCommand(), newInspectCommand(), newEpochCommand(), newReactionsCommand(), newGCCommand(), newLeaseCommand(), newAuditCommand(), newEmulatorsCommand(), newVersionCommand(),
		newUICommand(), newExportCommand(), newImportCommand(), newVerifyCommand(), newRetainCommand(),
		newMigrateCommand(), newStoreDoctorCommand(), newRunCommand(), newHealthCommand(), newManCommand())
	completeWords(root)
	nameArguments(root)
	addCompletion(root)
	return root
}

// oneLine returns an error's text on one line. It omits duplicates among joined errors.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
