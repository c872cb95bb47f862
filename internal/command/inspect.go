package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
)

// inspection is the state shared by the subcommands of inspect.
type inspection struct {
	url, format, from string
	limit             int

	store runstore.RunStore
	now   time.Time // the store clock, for the state of leases
	out   io.Writer
	notes io.Writer // receives a note if the page is not the last
}

func newInspectCommand() *cobra.Command {
	var in inspection
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Look into a store without changing it",
		Long: `Look into a store. Nothing is created or migrated, and no lease is touched.

On PostgreSQL, AlloyDB and Spanner one thing can happen all the same, as with every
program that connects: if the server was promoted, or the store restored, since it
was last open, the first connection raises the epoch, which ends all leases. On
Bigtable the clock is asked by a write to a row of its own. A server that cannot be reached is
given up after 5 seconds, or what retry_timeout=… in the URL says.

Long answers come in pages of --limit. A page that is not the last says so on standard
error, with the --from of the next one.`,
		Example: `  tapestore inspect runs --store sqlite:./tape.db
  tapestore inspect run RUN_ID --store sqlite:./tape.db
  tapestore inspect journal RUN_ID --store sqlite:./tape.db --format json
  tapestore inspect leases --store sqlite:./tape.db`,
	}
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(*cobra.Command, []string) error {
		return errors.New("name what to inspect: runs, run RUN_ID, journal RUN_ID or leases")
	}
	f := cmd.PersistentFlags()
	f.StringVar(&in.url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&in.format, "format", "table", "table or json")
	f.IntVar(&in.limit, "limit", 100, "length of a page")
	runs := in.command("runs", "Runs, the newest first", cobra.NoArgs, in.runs)
	run := in.command("run RUN_ID", "One run: identity, lease, its ledgers and their records", cobra.ExactArgs(1), in.run)
	journal := in.command("journal RUN_ID", "The journal of one run: who wrote what under which token", cobra.ExactArgs(1), in.journal)
	leases := in.command("leases", "Runs under a live lease, and the time that is left of it", cobra.NoArgs, in.leases)
	const cursor = "begin a page where the page before said that the next one does"
	runs.Flags().StringVar(&in.from, "from", "", cursor)
	leases.Flags().StringVar(&in.from, "from", "", cursor)
	run.Flags().StringVar(&in.from, "from", "", "begin the page of records, and of what they hold, at this key")
	journal.Flags().StringVar(&in.from, "from", "", "begin the page at this seq")
	cmd.AddCommand(runs, run, journal, leases)
	return cmd
}

// more prints on standard error that the page is not the last, and where the next one begins.
func (in *inspection) more(what, from string) {
	fmt.Fprintf(in.notes, "there are more %s; the next page begins with --from %s\n", what, shellWord(from))
}

// command returns a subcommand that runs show on an open store. It creates nothing: a mistyped name
// is an error, not a new store.
func (in *inspection) command(use, short string, args cobra.PositionalArgs, show func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx, stop := interruptible(cmd)
			defer stop()
			address, err := givenStore(in.url, os.LookupEnv)
			switch {
			case err != nil:
				return err
			case in.format != "table" && in.format != "json":
				return fmt.Errorf("--format is %q; it is table or json", in.format)
			case in.limit < 1:
				return fmt.Errorf("--limit is %d; the least is 1", in.limit)
			}
			if in.store, err = runstore.Open(ctx, readOnly(address)); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, in.store.Close()) }()
			if in.now, err = in.store.Now(ctx); err != nil {
				return err
			}
			in.out, in.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return show(ctx, args)
		},
	}
}

// readOnly changes a URL so that the engine creates, migrates and sets nothing. A text that is not
// a URL is left for runstore.Open to reject.
func readOnly(address string) string { return withoutCreating(address, "readonly", "yes") }

// existing changes a URL so that the engine creates and migrates nothing but accepts writes.
func existing(address string) string { return withoutCreating(address, "create", "no") }

// withoutCreating adds to a URL that the store must exist; sqliteKey and its value express that for
// SQLite.
func withoutCreating(address, sqliteKey, value string) string {
	u, err := runstore.ParseURL(address)
	if err != nil {
		return address
	}
	switch u.Scheme {
	case "sqlite":
		if u.Address == ":memory:" {
			return address // an in-memory store: there is nothing to protect
		}
		u.Params.Set(sqliteKey, value)
	case "postgres", "postgresql", "alloydb":
		u.Params.Set("migrate", "no")
		if !u.Params.Has("retry_timeout") {
			u.Params.Set("retry_timeout", "5s") // a person waits for the output
		}
	case "bigtable", "spanner":
		u.Params.Set("create", "no")
		if !u.Params.Has("retry_timeout") {
			u.Params.Set("retry_timeout", "5s")
		}
	default:
		return address
	}
	return u.Scheme + ":" + u.Address + "?" + u.Params.Encode()
}

// show prints rows as a table with a header, or as a JSON array of objects with the header's names
// as keys.
func (in *inspection) show(header []string, rows [][]any) error {
	if in.format == "json" {
		objects := make([]map[string]any, len(rows))
		for i, row := range rows {
			objects[i] = make(map[string]any, len(header))
			for j, name := range header {
				objects[i][strings.ReplaceAll(strings.ToLower(name), " ", "_")] = row[j]
			}
		}
		return in.json(objects)
	}
	tw := tabwriter.NewWriter(in.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		for j, cell := range row {
			if j > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, plain(cell))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

func (in *inspection) json(v any) error {
	enc := json.NewEncoder(in.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// plain formats a cell of a table. Text from a store may contain any bytes, and must not reach a
// terminal unescaped.
func plain(cell any) string {
	switch v := cell.(type) {
	case time.Time:
		if v.IsZero() {
			return "-"
		}
		return v.Format("2006-01-02 15:04:05.000")
	case string:
		if v == "" {
			return "-"
		}
		quoted := fmt.Sprintf("%q", v)
		if strings.Contains(quoted, `\`) {
			return quoted
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}
