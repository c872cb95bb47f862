package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

func newStoreDoctorCommand() *cobra.Command {
	var url string
	var write, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a store and what it runs on",
		Long: `Check a store and what it runs on: schema, permissions, settings of the engine, epochs, the
store clock against this host's, and latencies. Each line is ok, warn or fail, and says what
to do. Run it with the URL, and as the account, with which the server runs.

The command only reads, like tapestore inspect: an engine may finish in the background what
a crash has left, and on Bigtable the clock is asked by a write to a row of its own. A store
whose epoch or format would change by being opened, for example because its server was
promoted, is not opened. With --write it creates the unlisted run
"` + string(admin.ScratchRun) + `", measures commits, tries a fence that has ended, and purges the run.

The exit status is 0 if no line says fail, 2 if one does, and 1 if nothing was checked.
tapestore emulators doctor reports what engines this machine can start.`,
		Example: `  tapestore doctor --store postgres://tapestore_app@host/tape?migrate=no
  tapestore doctor --store sqlite:./tape.db --write --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(url, os.LookupEnv)
			if err != nil {
				return err
			}
			return examine(ctx, address, write, asJSON, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.BoolVar(&write, "write", false, "also write to a scratch run, which is purged at the end")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// doctorView is the JSON output of doctor.
type doctorView struct {
	Store    string          `json:"store"`
	Findings []admin.Finding `json:"findings"`
	Warnings int             `json:"warnings"`
	Failures int             `json:"failures"`
}

func examine(ctx context.Context, address string, write, asJSON bool, out io.Writer) error {
	opened := readOnly(address)
	if write {
		opened = existing(address)
	}
	u, err := runstore.ParseURL(opened)
	if err != nil {
		return err
	}
	v := doctorView{Store: u.String()}
	v.Findings = admin.Examination{
		URL: u, Write: write,
		Open: func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, opened) },
	}.Run(ctx)
	for i, f := range v.Findings {
		v.Findings[i].Found = hideArguments(f.Found, []string{address, opened})
		switch f.Status {
		case admin.Warn:
			v.Warnings++
		case admin.Fail:
			v.Failures++
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the examination was interrupted: %w", err)
	}
	if asJSON {
		err = (&inspection{out: out}).json(v)
	} else {
		err = printFindings(v, out)
	}
	if err == nil && v.Failures > 0 {
		return &exitError{fmt.Errorf("%d of %d checks failed", v.Failures, len(v.Findings)), exitRefused}
	}
	return err
}

func printFindings(v doctorView, out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range v.Findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Status, f.Check, visible(f.Found))
		if f.Advice != "" {
			fmt.Fprintf(tw, "\t\t→ %s\n", visible(f.Advice))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s: %d checks, %d warnings, %d failures\n", v.Store, len(v.Findings), v.Warnings, v.Failures)
	return err
}

// visible returns a text on one line, without characters that a terminal would interpret: a finding
// may repeat what a store or a server has.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, oneLine(errors.New(text)))
}
