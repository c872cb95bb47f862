package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

func newMigrateCommand() *cobra.Command {
	var url string
	var apply, asJSON bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Show what a store's schema lacks, or create and change it",
		Long: `Show what the schema of a store lacks for this program, with the statements that would run.
Nothing is changed: the plan needs the right to read only. With --apply the steps are made,
by an account that may change the schema; then a server can serve as an account that may
not, with migrate=no (PostgreSQL, AlloyDB) or create=no (Bigtable, Spanner) in its URL.

--apply may be repeated and interrupted: a repeat continues. A server that may change the
schema makes the same steps when it opens the store. On SQLite --apply opens the store, which
raises the epoch of a restored file. Programs of the version before may refuse the new schema:
docs/compatibility.md says which engines can be upgraded while they are open, and on which
they are stopped first.

The exit status is 0 when nothing is left to do, 2 when the plan has steps, and 1 if the
plan or a step failed.`,
		Example: `  tapestore migrate --store postgres://reader@host/tape
  tapestore migrate --apply --store postgres://admin@host/tape`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(url, os.LookupEnv)
			if err != nil {
				return err
			}
			return migrate(ctx, address, apply, asJSON, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "store", "", "store URL ["+storeVariable+"]")
	f.BoolVar(&apply, "apply", false, "make the steps")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// planView is the JSON output of migrate.
type planView struct {
	Store   string       `json:"store"`
	Holder  string       `json:"holder"`
	Version int          `json:"version,omitempty"`
	Program int          `json:"program_version,omitempty"`
	Steps   []admin.Step `json:"steps"`
	Applied bool         `json:"applied"`
}

func migrate(ctx context.Context, address string, apply, asJSON bool, out io.Writer) error {
	u, err := runstore.ParseURL(address)
	if err != nil {
		return err
	}
	engine := admin.Of(u.Scheme)
	if engine.Plan == nil {
		if !slices.Contains(runstore.Schemes(), u.Scheme) {
			return fmt.Errorf("--store has the unknown scheme %.64q; the schemes are %s", u.Scheme, strings.Join(runstore.Schemes(), ", "))
		}
		return fmt.Errorf("%s has no schema to migrate", u)
	}
	looked, err := runstore.ParseURL(readOnly(address))
	if err != nil {
		return err
	}
	plan, err := engine.Plan(ctx, looked)
	if err != nil {
		return err
	}
	v := planView{Store: u.String(), Holder: plan.Holder, Version: plan.Version, Program: plan.Program, Steps: plan.Steps}
	if v.Steps == nil {
		v.Steps = []admin.Step{}
	}
	if apply && len(plan.Steps) > 0 {
		if err := engine.Apply(ctx, u); err != nil {
			return fmt.Errorf("the schema was not changed completely; repeat the command: %w", err)
		}
		after, err := engine.Plan(ctx, looked)
		if err != nil {
			return fmt.Errorf("the steps were made, and then the schema could not be read: %w", err)
		}
		if len(after.Steps) > 0 {
			return fmt.Errorf("after the steps the schema still lacks: %s", after.Steps[0].Name)
		}
		v.Applied = true
	}
	if err := printPlan(v, asJSON, out); err != nil {
		return err
	}
	if len(plan.Steps) > 0 && !v.Applied {
		return &exitError{fmt.Errorf("%d steps are left; tapestore migrate --apply makes them", len(plan.Steps)), exitRefused}
	}
	return nil
}

func printPlan(v planView, asJSON bool, out io.Writer) error {
	if asJSON {
		return (&inspection{out: out}).json(v)
	}
	var b strings.Builder
	switch {
	case v.Program > 0:
		fmt.Fprintf(&b, "-- %s: version %d, this program needs %d\n", v.Holder, v.Version, v.Program)
	default:
		fmt.Fprintf(&b, "-- %s\n", v.Holder)
	}
	for i, step := range v.Steps {
		fmt.Fprintf(&b, "\n-- %d. %s\n", i+1, step.Name)
		if v.Applied {
			continue
		}
		for _, statement := range step.Statements {
			fmt.Fprintln(&b, statement)
		}
	}
	switch {
	case v.Applied:
		fmt.Fprintf(&b, "\n%d steps were made\n", len(v.Steps))
	case len(v.Steps) == 0:
		fmt.Fprintln(&b, "nothing to do")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
