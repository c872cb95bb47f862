package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/emulators"
)

func newUpCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "up postgres|alloydb|bigtable|all",
		Short: "Start engines for as long as this command runs",
		Long: `Start a private PostgreSQL server, the stand-in for AlloyDB before one, the
emulator of Bigtable, or all of them, print the URLs of a store in each, and stop
them on Ctrl-C or SIGTERM. Nothing is left behind, also when the command is killed;
with --dir the data of PostgreSQL is, durably, and the next start finds it. The
emulator of Bigtable forgets everything when it ends.

The stand-in for AlloyDB, with its Admin API, its certificates and its IAM, is for
the connector inside one process: tests (package emulators) and
tapestore conformance --engine alloydb. From other processes the store is reached
by the host of the server behind it, as behind the AlloyDB Auth Proxy.`,
		Example: `  tapestore emulators up postgres
  tapestore emulators up all --dir ./engines`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), func(_ *cobra.Command, args []string) error {
			switch args[0] {
			case "postgres", "alloydb", "bigtable", "all":
				return nil
			default:
				return fmt.Errorf("%q cannot be started; name postgres, alloydb, bigtable or all", args[0])
			}
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "bigtable" && dir != "" {
				return errors.New("--dir is for engines that keep data, and the emulator of Bigtable keeps none")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // so that the second signal kills
			return up(ctx, args[0], dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "keep the data of PostgreSQL in this directory")
	return cmd
}

// up starts engines, tells of them and ends them when ctx does.
func up(ctx context.Context, which, dir string, out io.Writer) (err error) {
	var starts []func() (end func() error, err error)
	if which != "bigtable" {
		starts = append(starts, func() (func() error, error) { return upPostgres(ctx, which, dir, out) })
	}
	if which == "bigtable" || which == "all" {
		starts = append(starts, func() (func() error, error) { return upBigtable(ctx, out) })
	}
	for _, start := range starts {
		end, failed := start()
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

// upPostgres starts PostgreSQL, and AlloyDB before it.
func upPostgres(ctx context.Context, which, dir string, out io.Writer) (end func() error, err error) {
	// Who keeps data wants it to survive the machine too.
	server, err := emulators.Postgres(ctx, &emulators.PostgresOptions{Dir: dir, Durable: dir != ""})
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
		if err := tellPostgres(ctx, out, server, server.Engine(), "postgres", "tapestore"); err != nil {
			return nil, err
		}
	}
	if which == "postgres" {
		return end, nil
	}
	standIn, err := emulators.AlloyDB(ctx, &emulators.AlloyDBOptions{Postgres: server})
	if err != nil {
		return nil, err
	}
	end = func() error { return errors.Join(standIn.Close(), server.Close()) }
	if err := tellPostgres(ctx, out, server, standIn.Engine(), "alloydb", "tapestore_alloydb"); err != nil {
		return nil, err
	}
	_, err = fmt.Fprint(out, "The URL leads to the server behind the stand-in, as through the Auth Proxy. The connector itself works only in the\n"+
		"process of the stand-in: in tests, and in tapestore conformance --engine alloydb.\n\n")
	return end, err
}

// upBigtable starts the emulator of Bigtable.
func upBigtable(ctx context.Context, out io.Writer) (end func() error, err error) {
	server, err := emulators.Bigtable(ctx, nil)
	if err != nil {
		return nil, err
	}
	if e := server.Engine(); e.Tier == emulators.TierService {
		return nil, errors.Join(errors.New("the environment names an emulator of Bigtable that runs already: use its address, or unset BIGTABLE_EMULATOR_HOST"), server.Close())
	}
	// Any project and instance will do.
	if err := tell(out, server.Engine(), "bigtable://tapestore/local/tapestore?emulator="+server.Address()); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server.Close, nil
}

// tellPostgres prints what a server is and how a store in one of its databases is used.
func tellPostgres(ctx context.Context, out io.Writer, server *emulators.PostgresServer, engine emulators.Engine, scheme, database string) error {
	address, err := server.KeepDatabase(ctx, database)
	if err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	u.Scheme, u.RawQuery = scheme, "" // to be short: without TLS is what is tried second
	return tell(out, engine, u.String())
}

// tell prints what an engine is and how a store on it is used.
func tell(out io.Writer, engine emulators.Engine, url string) error {
	quoted := url
	if strings.ContainsAny(url, "?&") { // which a shell takes for its own
		quoted = "'" + url + "'"
	}
	_, err := fmt.Fprintf(out, "%s\n  %s\n  tapestore serve --store %s\n  tapestore inspect runs --store %s\n\n", engine, url, quoted, quoted)
	return err
}
