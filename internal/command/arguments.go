package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// nameArguments makes a command and its subcommands name the argument that is missing, or that is too
// many, where cobra counts them. Arguments that Use does not list as plain words are left to cobra.
func nameArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		nameArguments(sub)
	}
	check, words := cmd.Args, strings.Fields(cmd.Use)[1:]
	if check == nil || cmd.HasSubCommands() || slices.ContainsFunc(words, func(w string) bool { return strings.ContainsAny(w, "(){}…") }) {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil:
			return nil
		case len(args) < len(words) && !strings.HasPrefix(words[len(args)], "["):
			missing := strings.Join(words[len(args):], " ")
			return fmt.Errorf("give %s: %s %s", missing, cmd.CommandPath(), strings.Join(words, " "))
		case len(args) > 0 && len(words) == 0:
			return fmt.Errorf("%s takes no arguments, and %q is one", cmd.CommandPath(), args[0])
		case len(args) > len(words):
			return fmt.Errorf("%s takes %s only, and %q follows", cmd.CommandPath(), strings.Join(words, " "), args[len(words)])
		}
		return err
	}
}

// addCompletion adds cobra's command completion, and makes it refuse a shell that it does not have. Cobra's
// scripts go to the output that the root has now; these go to the one that it has later.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	var shells []string
	for _, shell := range completion.Commands() {
		shells = append(shells, shell.Name())
		shell.RunE = printCompletion
	}
	last := len(shells) - 1
	completion.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("there is no completion for %q; the shells are %s and %s", args[0], strings.Join(shells[:last], ", "), shells[last])
	}
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// printCompletion prints the script of the shell that the command is named after.
func printCompletion(cmd *cobra.Command, _ []string) error {
	root, out := cmd.Root(), cmd.OutOrStdout()
	plain, err := cmd.Flags().GetBool("no-descriptions")
	switch shell := cmd.Name(); {
	case err != nil:
		return err
	case shell == "bash":
		return root.GenBashCompletionV2(out, !plain)
	case shell == "fish":
		return root.GenFishCompletion(out, !plain)
	case shell == "zsh" && plain:
		return root.GenZshCompletionNoDesc(out)
	case shell == "zsh":
		return root.GenZshCompletion(out)
	case plain:
		return root.GenPowerShellCompletion(out)
	}
	return root.GenPowerShellCompletionWithDesc(out)
}
