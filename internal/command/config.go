package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/retain/bucket"
	"github.com/tapestore/tapestore/tapeconfig"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Check tape.yaml, and show what applies", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("say what to do: check") },
	}
	var format string
	check := &cobra.Command{
		Use:   "check [PATH]",
		Short: "Report every fault of a configuration, or show it with the source of each value",
		Long: `Check the file that serve --config PATH would read, together with the environment, and
print the configuration: each value with its source, which is the default, FILE:LINE or a
variable. Without PATH the file is that of ` + configVariable + `, or none. Nothing is
opened but the file: neither the store, nor an address, nor the files of certificates,
principals and the archive. A store URL is shown without what may be a password.

If there are faults, all of them are printed on standard error, one on each line, and
the exit status is 1. What the keys mean is in docs/serving.md.`,
		Example: `  tapestore config check tape.yaml`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("--format is %q; it is table or json", format)
			}
			serve := newServeCommand()
			if len(args) == 1 {
				if args[0] == "" {
					return errors.New("PATH is empty")
				}
				if err := serve.Flags().Set("config", args[0]); err != nil {
					return err
				}
			}
			cfg, s := newSettings(serve, os.LookupEnv)
			for _, fault := range s.faults {
				fmt.Fprintln(cmd.ErrOrStderr(), hideArguments(oneLine(fault), append([]string{os.Getenv(configVariable)}, args...)))
			}
			switch n := len(s.faults); n {
			case 0:
			case 1:
				return errors.New("the configuration has a fault")
			default:
				return fmt.Errorf("the configuration has %d faults", n)
			}
			in := inspection{format: format, out: cmd.OutOrStdout()}
			return in.show([]string{"KEY", "VALUE", "SOURCE"}, s.rows(cfg))
		},
	}
	check.Flags().StringVar(&format, "format", "table", "table or json")
	cmd.AddCommand(check)
	return cmd
}

// rows returns every setting with its key in the file, its value and its place: those of serve, and
// those of the reactors that the file names and of the matcher.
func (s *settings) rows(cfg serveConfig) (rows [][]any) {
	for _, source := range serveSources {
		v := s.values[source.flag]
		switch source.flag {
		case "store":
			v.text = shownURL(cfg.store)
		case "drain":
			v.text = inSeconds(cfg.drain)
		case "retain-archive":
			if bucket.IsURL(v.text) {
				v.text = bucket.Shown(v.text)
			}
		case "matcher-lease":
			continue // in the section of its reactor
		}
		rows = append(rows, []any{source.key, v.text, v.place})
	}
	names := s.file.Reactors()
	if !slices.Contains(names, tapeconfig.Matcher) {
		names = append(names, tapeconfig.Matcher)
	}
	for _, name := range names {
		for _, set := range s.file.Settings(name) {
			place := byDefault
			if set.Line > 0 {
				place = fmt.Sprintf("%s:%d", s.file.File(), set.Line)
			}
			switch {
			case set.Key == matcherTTLKey:
				set.Value, place = inSeconds(cfg.matcherLease), s.values["matcher-lease"].place
			case set.Key == matcherHeartbeatKey:
				set.Value = inSeconds(cmp.Or(cfg.matcherHeartbeat, cfg.matcherLease/3))
			case name == tapeconfig.Matcher:
				continue // has no effect
			}
			rows = append(rows, []any{set.Key, set.Value, place})
		}
	}
	return rows
}

func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
