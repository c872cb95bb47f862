package command

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeconfig"
	"github.com/tapestore/tapestore/tapeserver"
)

// serveConfig is the configuration of serve from flags, environment and file.
type serveConfig struct {
	listen, probes, store string
	probesGiven           bool   // probes is not the default
	metrics, ui           string // empty for none
	fence                 tape.FenceMode
	waitForLease          bool
	maxMessageBytes       int
	limits                tapeserver.Limits
	drain                 time.Duration
	noMatcher             bool
	matcherLease          time.Duration
	matcherHeartbeat      time.Duration // 0: a third of matcherLease
	leaseTTL              map[runstore.Reactor]time.Duration
	logLevel              slog.Level
	logJSON               bool
	retention             *retention
	security              securityConfig
}

// The defaults of serve: the ports of Tape's own server, on loopback because nothing is authenticated
// by default.
const (
	defaultListen = "127.0.0.1:7878"
	defaultProbes = "127.0.0.1:7879"
	defaultStore  = "sqlite:tape.db"
	// 8 s: Docker kills a container 10 s after SIGTERM, and Kubernetes after 30 s.
	defaultDrain = 8 * time.Second
	// A renewal of each shard's lease about every three seconds.
	defaultMatcherLease = tapeconfig.MatcherTTL
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
store answers. If they cannot listen on an address that was given, the server does not start; the
default address may be in use by another server.

An address other than loopback needs TLS (--tls-cert, --tls-key) and authentication (--principals,
--oidc-issuer). With --insecure it needs neither: every client that can reach it may then read and
change every run. docs/security.md has the roles, the formats of the files and the threats.

A flag wins over its environment variable, and both win over the file that --config names
(tape.yaml). tapestore config check shows what applies. Store URLs: memory, sqlite:FILE (or a
bare path), sqlite::memory:, postgres://…, alloydb://…, bigtable://… and spanner://….
A server that cannot be reached is waited for: 30 seconds, or what retry_timeout=… in the URL says.`,
		Example: `  tapestore serve --store sqlite:./tape.db
  tapestore serve --store 'postgres://tape@db.internal/tape?retry_timeout=5s'
  tapestore serve --listen 127.0.0.1:7878 --store memory --fence connection --takeover expired
  tapestore serve --listen :443 --tls-cert tls.crt --tls-key tls.key --principals principals.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := serveSettings(cmd, os.LookupEnv)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			if err := serve(ctx, cfg, cmd.ErrOrStderr()); err != nil {
				return errors.New(hideArguments(oneLine(err), []string{cfg.store})) // it may be from the file
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.String("config", "", "file with further settings, tape.yaml; none is read by default ["+configVariable+"]")
	f.String("listen", defaultListen, "gRPC address [TAPE_LISTEN]")
	f.String("healthz-listen", defaultProbes, "HTTP address of the probes /healthz and /readyz; empty for none [TAPE_HEALTHZ_LISTEN]")
	f.String("metrics-listen", "", "HTTP address of Prometheus's /metrics; empty for none [TAPE_METRICS_LISTEN]")
	f.String("ui-listen", "", "HTTP address of the inspector's page, with TLS and roles as on the gRPC address; empty for none [TAPE_UI_LISTEN]")
	f.String("store", defaultStore, "store URL [TAPE_STORE]")
	f.String("db", "", "SQLite file; the older form of --store, used when no store is given [TAPE_DB]")
	f.String("fence", tape.FencePresented.String(), `"presented" checks the fences that clients present, "required" refuses a driver's writes without one, "connection" presents for clients that know of none the grant answered on their connection [TAPE_FENCE]`)
	f.String("takeover", "any", `"any" lets BeginRun and ResumeRun take a live lease, "expired" only one that is over, or the caller's own [TAPE_TAKEOVER]`)
	f.Int("max-message-bytes", 4<<20, "largest request [TAPE_MAX_MESSAGE_BYTES]")
	f.Int64("max-bytes-in-flight", 128<<20, "requests and replies in memory; the process takes about three times as much at most [TAPE_MAX_BYTES_IN_FLIGHT]")
	f.Int("max-connections", 1024, "open connections [TAPE_MAX_CONNECTIONS]")
	f.Int("max-connections-per-address", 0, "open connections of one IP address or, of IPv6, one /64; 0 for seven eighths of --max-connections [TAPE_MAX_CONNECTIONS_PER_ADDRESS]")
	f.Int("max-streams", 2048, "calls at once, idle subscriptions included [TAPE_MAX_STREAMS]")
	f.Duration("drain", defaultDrain, "how long the process takes to end, at most [TAPE_DRAIN]")
	f.Bool("matcher", true, "match reactions with the feed; one server on a store is enough, and of several each takes some of the shards [TAPE_MATCHER]")
	f.Duration("matcher-lease", defaultMatcherLease, "how long the shards of reactions wait for another server when this one is killed [TAPE_MATCHER_LEASE]")
	f.String("log-level", "info", `"debug", "info", "warn" or "error" [TAPE_LOG_LEVEL]`)
	f.String("log-format", "text", `"text" or "json", one line for each event on standard error [TAPE_LOG_FORMAT]`)
	addRetainFlags(f)
	addSecurityFlags(f)
	return cmd
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
