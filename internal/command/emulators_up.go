package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/emulators"
)

func newUpCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "up postgres|alloydb|all",
		Short: "Start engines for as long as this command runs",
		Long: `Start a private PostgreSQL server, the stand-in for AlloyDB before one, or both,
print the URLs of a store in each, and stop them on Ctrl-C or SIGTERM. Nothing is
left behind, also when the command is killed; with --dir the data is, durably, and
the next start finds it.

The stand-in for AlloyDB, with its Admin API, its certificates and its IAM, is for
the connector inside one process: tests (package emulators) and
tapestore conformance --engine alloydb. From other processes the store is reached
by the host of the server behind it, as behind the AlloyDB Auth Proxy.`,
		Example: `  tapestore emulators up postgres
  tapestore emulators up all --dir ./engines`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), func(_ *cobra.Command, args []string) error {
			switch args[0] {
			case "postgres", "alloydb", "all":
				return nil
			default:
				return fmt.Errorf("%q cannot be started; name postgres, alloydb or all", args[0])
			}
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // so that the second signal kills
			return up(ctx, args[0], dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "keep the data in this directory")
	return cmd
}

// up starts engines, tells of them and ends them when ctx does.
func up(ctx context.Context, which, dir string, out io.Writer) (err error) {
	// Who keeps data wants it to survive the machine too.
	server, err := emulators.Postgres(ctx, &emulators.PostgresOptions{Dir: dir, Durable: dir != ""})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if e := server.Engine(); e.Tier == emulators.TierService {
		return fmt.Errorf("the environment names a server that runs already, %s: use its URL, or unset EMULATORS_POSTGRES_URL", e)
	}
	if which != "alloydb" {
		if err := tell(ctx, out, server, server.Engine(), "postgres", "tapestore"); err != nil {
			return err
		}
	}
	if which != "postgres" {
		standIn, err := emulators.AlloyDB(ctx, &emulators.AlloyDBOptions{Postgres: server})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, standIn.Close()) }()
		if err := tell(ctx, out, server, standIn.Engine(), "alloydb", "tapestore_alloydb"); err != nil {
			return err
		}
		fmt.Fprint(out, "The URL leads to the server behind the stand-in, as through the Auth Proxy. The connector itself works only in the\n"+
			"process of the stand-in: in tests, and in tapestore conformance --engine alloydb.\n\n")
	}
	if dir != "" {
		fmt.Fprintf(out, "The data stays in %s; the port changes with every start.\n", dir)
	}
	fmt.Fprintln(out, "Ctrl-C stops it.")
	<-ctx.Done()
	return nil
}

// tell prints what an engine is and how a store on it is used.
func tell(ctx context.Context, out io.Writer, server *emulators.PostgresServer, engine emulators.Engine, scheme, database string) error {
	address, err := server.KeepDatabase(ctx, database)
	if err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	u.Scheme, u.RawQuery = scheme, "" // to be short: without TLS is what is tried second
	_, err = fmt.Fprintf(out, "%s\n  %s\n  tapestore serve --store %s\n  tapestore inspect runs --store %s\n\n", engine, u, u, u)
	return err
}
