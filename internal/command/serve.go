package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
)

// serveConfig is what serve was told by flags and environment.
type serveConfig struct {
	listen, probes, store string
	fence                 tape.FenceMode
	maxMessageBytes       int
}

// The defaults of serve, those of Tape's own server.
const (
	defaultListen = "0.0.0.0:7878"
	defaultProbes = "0.0.0.0:7879"
	defaultStore  = "sqlite:tape.db"
)

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve Tape's wire protocol on a store",
		Long: `Serve the gRPC service tape.v1.Tape on a store, until SIGTERM or SIGINT; then
finish the calls in flight. A second signal ends it at once.

A flag wins over its environment variable. Store URLs: memory, sqlite:FILE (or a
bare path), sqlite::memory:, postgres://…, alloydb://…, bigtable://… and spanner://….
A server that cannot be reached is waited for: 30 seconds, or what patience=… in the URL says.`,
		Example: `  tapestore serve --store sqlite:./tape.db
  tapestore serve --store 'postgres://tape@db.internal/tape?patience=5s'
  tapestore serve --listen 127.0.0.1:7878 --store memory --fence required`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := serveSettings(cmd, os.LookupEnv)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // so that the second signal kills
			return serve(ctx, cfg, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.String("listen", defaultListen, "gRPC address [TAPE_LISTEN]")
	f.String("healthz-listen", defaultProbes, "HTTP address of the probes /healthz and /readyz; empty for none [TAPE_HEALTHZ_LISTEN]")
	f.String("store", defaultStore, "store URL [TAPE_STORE]")
	f.String("db", "", "SQLite file; the older form of --store, used when no store is given [TAPE_DB]")
	f.String("fence", tape.FencePresented.String(), `"presented" checks the fences that clients present, "required" refuses writes without one [TAPE_FENCE]`)
	f.Int("max-message-bytes", 4<<20, "largest request")
	return cmd
}

// serveSettings resolves flags, environment and defaults, in this order.
func serveSettings(cmd *cobra.Command, env func(string) (string, bool)) (cfg serveConfig, err error) {
	// setting returns a flag or its variable, and whether the user gave either. An
	// empty variable counts as not given.
	setting := func(flag, variable string) (string, bool) {
		f := cmd.Flags().Lookup(flag)
		if !f.Changed {
			if v, _ := env(variable); v != "" {
				return v, true
			}
		}
		return f.Value.String(), f.Changed
	}
	cfg.listen, _ = setting("listen", "TAPE_LISTEN")
	cfg.probes, _ = setting("healthz-listen", "TAPE_HEALTHZ_LISTEN")
	if v, ok := env("TAPE_HEALTHZ_LISTEN"); ok && v == "" && !cmd.Flags().Changed("healthz-listen") {
		cfg.probes = "" // the one setting whose empty value means something
	}
	store, given := setting("store", storeVariable)
	name := "--store"
	cfg.store, err = storeURL(store)
	if db, ok := setting("db", "TAPE_DB"); ok && !given {
		name = "--db"
		cfg.store, err = dbURL(db)
	}
	if err != nil {
		return cfg, fmt.Errorf("%s %w", name, err)
	}
	switch mode, _ := setting("fence", "TAPE_FENCE"); mode {
	case tape.FencePresented.String():
		cfg.fence = tape.FencePresented
	case tape.FenceRequired.String():
		cfg.fence = tape.FenceRequired
	default:
		return cfg, fmt.Errorf("--fence is %q; it is presented or required", mode)
	}
	cfg.maxMessageBytes, err = cmd.Flags().GetInt("max-message-bytes")
	if err == nil && cfg.maxMessageBytes < 1 {
		err = fmt.Errorf("--max-message-bytes is %d; the least is 1", cfg.maxMessageBytes)
	}
	return cfg, err
}

// serve opens the store, serves it until ctx ends and closes it. The address comes
// first: a server that cannot listen must not have touched the store.
func serve(ctx context.Context, cfg serveConfig, out io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(out, nil))
	lis, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = lis.Close() }()       // closed already, once it has been served
	shown, _ := runstore.ParseURL(cfg.store) // without secrets
	// An engine behind a network may be on its way up too, and is waited for.
	waiting := time.AfterFunc(3*time.Second, func() { log.Warn("the store does not answer yet", "store", shown.String()) })
	store, err := runstore.Open(ctx, cfg.store)
	waiting.Stop()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := logEpoch(ctx, store, log); err != nil {
		return err
	}
	server := tapeserver.New(store, &tapeserver.Options{Fence: cfg.fence, MaxMessageBytes: cfg.maxMessageBytes, Logger: log})
	serveProbes(ctx, server, cfg.probes, log)
	log.Info("serving", "grpc", lis.Addr().String(), "store", shown.String(), "fence", cfg.fence.String())
	err = server.Serve(ctx, lis)
	log.Info("stopped")
	return err
}

// logEpoch tells of the store's epoch, and warns of one that has just begun: it
// has ended every grant.
func logEpoch(ctx context.Context, store runstore.RunStore, log *slog.Logger) error {
	epocher, ok := store.(runstore.Epocher)
	if !ok {
		return nil
	}
	epochs, err := epocher.Epochs(ctx)
	if err != nil || len(epochs) == 0 {
		return err
	}
	now, err := store.Now(ctx)
	if err != nil {
		return err
	}
	last := epochs[len(epochs)-1]
	level, text := slog.LevelInfo, "epoch"
	if now.Sub(last.At) < time.Minute {
		level, text = slog.LevelWarn, "a new epoch began: every grant before it was ended"
	}
	log.Log(ctx, level, text, "epoch", int64(last.Epoch), "at", last.At, "reason", last.Reason)
	return nil
}

// serveProbes answers probes in the background. Not being able to is no reason
// not to serve: several servers on one host share the default address.
func serveProbes(ctx context.Context, server *tapeserver.Server, address string, log *slog.Logger) {
	if address == "" {
		return
	}
	lis, err := net.Listen("tcp", address)
	if err != nil {
		log.Warn("no probes", "healthz-listen", address, "error", err)
		return
	}
	log.Info("probes", "http", lis.Addr().String())
	go func() {
		if err := server.ServeProbes(ctx, lis); err != nil {
			log.Warn("probes ended", "error", err)
		}
	}()
}
