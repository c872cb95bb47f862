package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/emulators"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

// upEngines are the engines that up can start, in start order.
var upEngines = []string{"postgres", "alloydb", "bigtable", "spanner"}

// forgetful are the engines that do not keep data, with their display names.
var forgetful = map[string]string{"bigtable": "Bigtable", "spanner": "Spanner"}

func newUpCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "up " + strings.Join(upEngines, "|") + "|all",
		Short: "Start engines for as long as this command runs",
		Long: `Start a private PostgreSQL server, the stand-in for AlloyDB before one, the
emulator of Bigtable or of Spanner, or all of them, print the URLs of a store in
each, and stop them on Ctrl-C or SIGTERM. Of all, what this machine lacks is left
out and told of. Nothing is left behind, also when the command is killed; with --dir
the data of PostgreSQL is, durably, and the next start finds it. The emulators of
Bigtable and Spanner forget everything when they end.

The stand-in for AlloyDB, with its Admin API, its certificates and its IAM, is for
the connector inside one process: tests (package emulators/alloydb) and
tapestore conformance --engine alloydb. From other processes the store is reached
by the host of the server behind it, as behind the AlloyDB Auth Proxy.`,
		Example: `  tapestore emulators up postgres
  tapestore emulators up all --dir ./engines`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), func(_ *cobra.Command, args []string) error {
			if args[0] != "all" && !slices.Contains(upEngines, args[0]) {
				return fmt.Errorf("%q cannot be started; name %s or all", args[0], strings.Join(upEngines, ", "))
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name, ok := forgetful[args[0]]; ok && dir != "" {
				return fmt.Errorf("--dir is for engines that keep data, and the emulator of %s keeps none", name)
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			return up(ctx, args[0], dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "keep the data of PostgreSQL in this directory")
	return cmd
}

// up starts engines, prints how to use them, and stops them when ctx ends.
func up(ctx context.Context, which, dir string, out io.Writer) (err error) {
	var starts []func() (end func() error, err error)
	if _, ok := forgetful[which]; !ok {
		starts = append(starts, func() (func() error, error) { return upPostgres(ctx, which, dir, out) })
	}
	if which == "bigtable" || which == "all" {
		starts = append(starts, func() (func() error, error) { return upBigtable(ctx, out) })
	}
	if which == "spanner" || which == "all" {
		starts = append(starts, func() (func() error, error) { return upSpanner(ctx, out) })
	}
	for _, start := range starts {
		end, failed := start()
		if which == "all" && errors.Is(failed, emulators.ErrMissing) {
			fmt.Fprintf(out, "left out: %s\n\n", oneLine(failed))
			continue
		}
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	if dir != "" {
		fmt.Fprintf(out, "The data of PostgreSQL stays in %s; the port changes with every start.\n", dir)
	}
	fmt.Fprintln(out, "Ctrl-C stops it.")
	<-ctx.Done()
	return nil
}

// upPostgres starts PostgreSQL and, unless which excludes it, the stand-in for AlloyDB in front of
// it.
func upPostgres(ctx context.Context, which, dir string, out io.Writer) (end func() error, err error) {
	// Data in a directory of the user must also survive a crash of the machine.
	server, err := postgresemulator.Start(ctx, &postgresemulator.Options{Dir: dir, Durable: dir != ""})
	if err != nil {
		return nil, err
	}
	end = server.Close
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	if e := server.Engine(); e.Tier == emulators.TierService {
		return nil, fmt.Errorf("the environment names a server that runs already, %s: use its URL, or unset EMULATORS_POSTGRES_URL", e)
	}
	if which != "alloydb" {
		if err := announcePostgres(ctx, out, server, server.Engine(), "postgres", "tapestore"); err != nil {
			return nil, err
		}
	}
	if which == "postgres" {
		return end, nil
	}
	standIn, err := alloydbemulator.Start(ctx, &alloydbemulator.Options{Postgres: server})
	if err != nil {
		return nil, err
	}
	end = func() error { return errors.Join(standIn.Close(), server.Close()) }
	if err := announcePostgres(ctx, out, server, standIn.Engine(), "alloydb", "tapestore_alloydb"); err != nil {
		return nil, err
	}
	_, err = fmt.Fprint(out, "The URL leads to the server behind the stand-in, as through the Auth Proxy. The connector itself works only in the\n"+
		"process of the stand-in: in tests, and in tapestore conformance --engine alloydb.\n\n")
	return end, err
}

// upBigtable starts the emulator of Bigtable.
func upBigtable(ctx context.Context, out io.Writer) (end func() error, err error) {
	server, err := bigtableemulator.Start(ctx, nil)
	if err != nil {
		return nil, err
	}
	if e := server.Engine(); e.Tier == emulators.TierService {
		return nil, errors.Join(errors.New("the environment names an emulator of Bigtable that runs already: use its address, or unset BIGTABLE_EMULATOR_HOST"), server.Close())
	}
	// Any project and instance works.
	if err := announce(ctx, out, server.Engine(), "bigtable://tapestore/local/tapestore?emulator="+server.Address()); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server.Close, nil
}

// upSpanner starts the emulator of Spanner.
func upSpanner(ctx context.Context, out io.Writer) (end func() error, err error) {
	server, err := spanneremulator.Start(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Close())
		}
	}()
	if e := server.Engine(); e.Tier == emulators.TierService {
		return nil, errors.New("the environment names an emulator of Spanner that runs already: use its address, or unset SPANNER_EMULATOR_HOST")
	}
	// Any project, instance and database works: on an emulator the store creates them.
	url := "spanner://tapestore/local/tapestore?emulator=" + server.Address()
	return server.Close, announce(ctx, out, server.Engine(), url)
}

// announcePostgres prints what a server is and how to use a store in one of its databases.
func announcePostgres(ctx context.Context, out io.Writer, server *postgresemulator.Server, engine emulators.Engine, scheme, database string) error {
	address, err := server.KeepDatabase(ctx, database)
	if err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	u.Scheme, u.RawQuery = scheme, "" // keep the URL short: the client falls back to no TLS
	return announce(ctx, out, engine, u.String())
}

// announce creates a store on an engine, which inspect would not, and prints what the engine is and
// commands that use the store.
func announce(ctx context.Context, out io.Writer, engine emulators.Engine, url string) error {
	store, err := runstore.Open(ctx, url)
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	quoted := url
	if strings.ContainsAny(url, "?&") { // special characters of a shell
		quoted = "'" + url + "'"
	}
	name := program()
	_, err = fmt.Fprintf(out, "%s\n  %s\n  %s serve --store %s\n  %s inspect runs --store %s\n\n", engine, url, name, quoted, name, quoted)
	return err
}

// program returns the shell command of this program: its name if that is on the path, else its
// path.
func program() string {
	const name = "tapestore"
	self, err := os.Executable()
	if err != nil {
		return name
	}
	if found, err := exec.LookPath(name); err == nil && sameFile(found, self) {
		return name
	}
	return shellWord(self)
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
