package command

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
)

// serveConfig is the configuration of serve from flags and environment.
type serveConfig struct {
	listen, probes, store string
	fence                 tape.FenceMode
	waitForLease          bool
	maxMessageBytes       int
	limits                tapeserver.Limits
	drain                 time.Duration
	noMatcher             bool
	matcherLease          time.Duration
	logLevel              slog.Level
	logJSON               bool
}

// The defaults of serve: the ports of Tape's own server, on loopback because there is no
// authentication.
const (
	defaultListen = "127.0.0.1:7878"
	defaultProbes = "127.0.0.1:7879"
	defaultStore  = "sqlite:tape.db"
	// 8 s: Docker kills a container 10 s after SIGTERM, and Kubernetes after 30 s.
	defaultDrain = 8 * time.Second
	// 10 s: a renewal of each shard's lease about every three seconds.
	defaultMatcherLease = 10 * time.Second
)

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve Tape's wire protocol on a store",
		Long: `Serve the gRPC service tape.v1.Tape on a store, until SIGTERM or SIGINT. From then on
calls are refused, calls in flight are finished, and the process ends within the drain time,
whatever clients and store do. A second signal ends it at once. gRPC's health service and
reflection are served too.

The probes answer from the first moment: /healthz says that the process lives, /readyz that its
store answers. There is no TLS and no authentication yet: listen on another address than
loopback only where every client that can reach it may read and change every run.

A flag wins over its environment variable. Store URLs: memory, sqlite:FILE (or a
bare path), sqlite::memory:, postgres://…, alloydb://…, bigtable://… and spanner://….
A server that cannot be reached is waited for: 30 seconds, or what retry_timeout=… in the URL says.`,
		Example: `  tapestore serve --store sqlite:./tape.db
  tapestore serve --store 'postgres://tape@db.internal/tape?retry_timeout=5s'
  tapestore serve --listen 127.0.0.1:7878 --store memory --fence connection --takeover expired`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := serveSettings(cmd, os.LookupEnv)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills the process
			return serve(ctx, cfg, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.String("listen", defaultListen, "gRPC address [TAPE_LISTEN]")
	f.String("healthz-listen", defaultProbes, "HTTP address of the probes /healthz and /readyz; empty for none [TAPE_HEALTHZ_LISTEN]")
	f.String("store", defaultStore, "store URL [TAPE_STORE]")
	f.String("db", "", "SQLite file; the older form of --store, used when no store is given [TAPE_DB]")
	f.String("fence", tape.FencePresented.String(), `"presented" checks the fences that clients present, "required" refuses a driver's writes without one, "connection" presents for clients that know of none the grant answered on their connection [TAPE_FENCE]`)
	f.String("takeover", "any", `"any" lets BeginRun and ResumeRun take a live lease, "expired" only one that is over, or the caller's own [TAPE_TAKEOVER]`)
	f.Int("max-message-bytes", 4<<20, "largest request")
	f.Int64("max-bytes-in-flight", 128<<20, "requests and replies in memory; the process takes about three times as much at most")
	f.Int("max-connections", 1024, "open connections")
	f.Int("max-streams", 2048, "calls at once, idle subscriptions included")
	f.Duration("drain", defaultDrain, "how long the process takes to end, at most [TAPE_DRAIN]")
	f.Bool("matcher", true, "match reactions with the feed; one server on a store is enough, and of several each takes some of the shards")
	f.Duration("matcher-lease", defaultMatcherLease, "how long the shards of reactions wait for another server when this one is killed")
	f.String("log-level", "info", `"debug", "info", "warn" or "error" [TAPE_LOG_LEVEL]`)
	f.String("log-format", "text", `"text" or "json", one line for each event on standard error [TAPE_LOG_FORMAT]`)
	return cmd
}

// serveSettings resolves flags, environment variables and defaults, in this order of precedence.
func serveSettings(cmd *cobra.Command, env func(string) (string, bool)) (cfg serveConfig, err error) {
	// setting returns the value of a flag or its variable, and whether the user set either. An
	// empty variable counts as not set.
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
		cfg.probes = "" // the only setting whose empty value has a meaning
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
	case tape.FenceConnection.String():
		cfg.fence = tape.FenceConnection
	default:
		return cfg, fmt.Errorf("--fence is %q; it is presented, required or connection", mode)
	}
	switch takeover, _ := setting("takeover", "TAPE_TAKEOVER"); takeover {
	case "any":
	case "expired":
		cfg.waitForLease = true
	default:
		return cfg, fmt.Errorf("--takeover is %q; it is any or expired", takeover)
	}
	drain, _ := setting("drain", "TAPE_DRAIN")
	if cfg.drain, err = time.ParseDuration(drain); err != nil || cfg.drain <= 0 {
		return cfg, fmt.Errorf("--drain is %q; it is a duration above zero, for example 8s", drain)
	}
	matches, _ := cmd.Flags().GetBool("matcher")
	cfg.noMatcher = !matches
	if cfg.matcherLease, _ = cmd.Flags().GetDuration("matcher-lease"); cfg.matcherLease < matcher.MinTTL || cfg.matcherLease > runstore.MaxTTL {
		return cfg, fmt.Errorf("--matcher-lease is %v; it is from %v to %v", cfg.matcherLease, matcher.MinTTL, runstore.MaxTTL)
	}
	level, _ := setting("log-level", "TAPE_LOG_LEVEL")
	if err := cfg.logLevel.UnmarshalText([]byte(level)); err != nil {
		return cfg, fmt.Errorf("--log-level is %q; it is debug, info, warn or error", level)
	}
	switch format, _ := setting("log-format", "TAPE_LOG_FORMAT"); format {
	case "text":
	case "json":
		cfg.logJSON = true
	default:
		return cfg, fmt.Errorf("--log-format is %q; it is text or json", format)
	}
	cfg.maxMessageBytes, _ = cmd.Flags().GetInt("max-message-bytes")
	cfg.limits.BytesInFlight, _ = cmd.Flags().GetInt64("max-bytes-in-flight")
	cfg.limits.Connections, _ = cmd.Flags().GetInt("max-connections")
	cfg.limits.Streams, _ = cmd.Flags().GetInt("max-streams")
	for flag, value := range map[string]int64{
		"max-message-bytes": int64(cfg.maxMessageBytes), "max-bytes-in-flight": cfg.limits.BytesInFlight,
		"max-connections": int64(cfg.limits.Connections), "max-streams": int64(cfg.limits.Streams),
	} {
		if value < 1 {
			return cfg, fmt.Errorf("--%s is %d; the least is 1", flag, value)
		}
	}
	return cfg, nil
}

// logEpoch logs the store's epoch, and warns of an epoch that has just begun, because it has ended
// every grant.
func logEpoch(ctx context.Context, store runstore.RunStore, log *slog.Logger) error {
	epocher, ok := runstore.As[runstore.EpochManager](store)
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
