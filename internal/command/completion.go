package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tapestore/tapestore/runstore"
)

// flagWords are the values that shells offer for a flag, by its name. Where commands differ in the
// values of a flag, its usage text lists them (see wordsOf).
var flagWords = map[string][]string{
	"fence":      {"presented", "required", "connection"},
	"takeover":   {"any", "expired"},
	"log-level":  {"debug", "info", "warn", "error"},
	"log-format": {"text", "json"},
	"format":     {"table", "text", "json", "html"},
}

// fileFlags are the flags whose values name files, which shells complete by themselves.
var fileFlags = []string{"config", "out", "dir", "db", "principals"}

// namesFile reports whether a flag's value names a file.
func namesFile(flag string) bool {
	if slices.Contains(fileFlags, flag) {
		return true
	}
	for _, end := range []string{"-cert", "-key", "-ca", "-crl", "-file", "-dir"} {
		if strings.HasSuffix(flag, end) {
			return true
		}
	}
	return false
}

// completeWords sets what shells offer for the flags and arguments of a command and its subcommands:
// the words of flags that have some, the schemes of stores, files where a file is expected, and
// otherwise nothing.
func completeWords(cmd *cobra.Command) {
	register := func(f *pflag.Flag) {
		if _, there := cmd.GetFlagCompletionFunc(f.Name); there || f.Value.Type() == "bool" || namesFile(f.Name) {
			return
		}
		complete := cobra.NoFileCompletions
		if f.Name == "store" {
			complete = completeStore
		} else if words := wordsOf(f); len(words) > 0 {
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // it has none yet
	}
	cmd.LocalFlags().VisitAll(register)
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !strings.Contains(cmd.Use, "PATH") && !strings.Contains(cmd.Use, "FILE") {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		completeWords(sub)
	}
}

// wordsOf returns the words of a flag that its usage text has.
func wordsOf(f *pflag.Flag) []string {
	words := slices.Clone(flagWords[f.Name])
	return slices.DeleteFunc(words, func(word string) bool { return f.Name == "format" && !strings.Contains(f.Usage, word) })
}

// completeStore offers the schemes of store URLs. A URL goes on after its scheme.
func completeStore(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if strings.ContainsAny(typed, "/.") {
		return nil, cobra.ShellCompDirectiveDefault // a bare path of an SQLite file
	}
	var words []string
	for _, scheme := range runstore.Schemes() {
		if word := scheme + ":"; strings.HasPrefix(word, typed) {
			words = append(words, word)
		}
	}
	return words, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
