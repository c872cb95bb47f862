package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver"
)

// serve opens the store, serves it until ctx ends and closes it. After the end of ctx it returns
// within the drain time, even if the store does not open or close; "stopped" is then the last line
// of the log. It listens before it opens the store, because a server that cannot listen must not
// have touched the store.
func serve(ctx context.Context, cfg serveConfig, out io.Writer) error {
	log := newLog(cfg, out)
	// Seven eighths leave the store a sixteenth to close if calls had to be cut; usually the store
	// has nearly all of the time.
	opts := tapeserver.Options{
		Fence: cfg.fence, WaitForLease: cfg.waitForLease, MaxMessageBytes: cfg.maxMessageBytes, Limits: cfg.limits, Logger: log, DrainTimeout: cfg.drain / 8 * 7,
		NoMatcher: cfg.noMatcher, MatcherTTL: cfg.matcherLease, MatcherHeartbeat: cfg.matcherHeartbeat, LeaseTTL: cfg.leaseTTL,
	}
	if err := cfg.security.secure(ctx, &opts); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = lis.Close() }() // already closed if it was served
	if err := cfg.security.checkListener("--listen", lis, log); err != nil {
		return err
	}
	ui, err := listenUI(cfg, log)
	if err != nil {
		return err
	}
	if ui != nil {
		defer func() { _ = ui.Close() }() // already closed if it was served
	}
	probing, err := listenProbes(cfg, log)
	if err != nil {
		return err
	}
	if probing != nil {
		defer func() { _ = probing.Close() }() // already closed if it was served
	}
	log.Debug("starting", "grpc", lis.Addr().String())
	started := tapeserver.ServeStarting(lis.(*net.TCPListener), opts)
	defer started()
	measures, err := startTelemetry(ctx, cfg.metrics, cfg.drain/8, log)
	if err != nil {
		return err
	}
	if cfg.retention != nil {
		if err := cfg.retention.open(ctx); err != nil {
			measures.stop(ctx)
			return fmt.Errorf("--retain-archive: %w", err)
		}
		defer func() { _ = cfg.retention.close() }() // nothing is being written
	}
	probes := &tapeserver.Probes{}
	stopProbes := serveProbes(probes, probing, measures.conns.probes, log)
	defer stopProbes()
	overdue, cancel := afterEnd(ctx, cfg.drain/16*15) // the rest is for the process to exit
	defer cancel()
	ended := sync.OnceFunc(func() { measures.stop(overdue) })
	defer ended()

	store, err := openStore(ctx, overdue, cfg.store, log)
	if err != nil {
		if ctx.Err() != nil {
			ended()
			log.Info("stopped", "before", "the store was open")
			return nil
		}
		return err
	}
	shown, _ := runstore.ParseURL(cfg.store) // prints without secrets
	store = measures.wrap(store, shown.Scheme)
	server := tapeserver.New(store, measures.add(&opts))
	stopUI := serveUI(ui, measures.conns.inspector, store, opts)
	sampling, stopSampling := context.WithCancel(ctx)
	defer stopSampling()
	go measures.sample(sampling, store, shown.Scheme)
	retentionEnded := cfg.retention.serve(sampling, store, shown.String(), measures)
	started()
	probes.SetServer(server)
	log.Info("serving", "grpc", lis.Addr().String(), "store", shown.String(), "fence", cfg.fence.String(), "wait_for_lease", cfg.waitForLease,
		"tls", cfg.security.shownTLS(), "authentication", cfg.security.authenticates())
	err = server.Serve(ctx, lis)
	stopSampling()
	stopUI(overdue)
	select { // a pass ends between two runs
	case <-retentionEnded:
	case <-overdue.Done():
	}
	if err != nil { // the listener failed; no drain has begun
		return errors.Join(err, store.Close())
	}
	closeStore(overdue, store, log)
	ended()
	log.Info("stopped")
	return nil
}

// newLog returns the log of the process, which the stores and gRPC also write to.
func newLog(cfg serveConfig, out io.Writer) *slog.Logger {
	var handler slog.Handler = slog.NewTextHandler(out, &slog.HandlerOptions{Level: cfg.logLevel})
	if cfg.logJSON {
		handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: cfg.logLevel})
	}
	log := slog.New(handler)
	slog.SetDefault(log)
	sink := slog.NewLogLogger(handler, slog.LevelWarn).Writer()
	grpcErrors.to.Store(&sink)
	return log
}

// grpcErrors passes gRPC's errors to the log of the process, once there is one.
var grpcErrors switchedWriter

// gRPC accepts a logger only before its first use. Its warnings concern single connections and are
// discarded.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, &grpcErrors)) }

// switchedWriter passes writes on: to standard error until another writer is stored.
type switchedWriter struct{ to atomic.Pointer[io.Writer] }

func (s *switchedWriter) Write(p []byte) (int, error) {
	if to := s.to.Load(); to != nil {
		return (*to).Write(p)
	}
	return os.Stderr.Write(p)
}

// afterEnd returns a context that ends some time after ctx.
func afterEnd(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(after, cancel) })
	return late, cancel
}

// opened is the result of opening a store.
type opened struct {
	store runstore.RunStore
	err   error
}

// openStore opens a store and logs its epoch. It waits for an engine behind a network that may
// still be starting. If opening does not end even when ctx does, it is abandoned when overdue ends.
func openStore(ctx, overdue context.Context, url string, log *slog.Logger) (runstore.RunStore, error) {
	shown, _ := runstore.ParseURL(url) // prints without secrets
	waiting := time.AfterFunc(3*time.Second, func() { log.Warn("the store does not answer yet", "store", shown.String()) })
	defer waiting.Stop()
	result := make(chan opened, 1)
	go func() {
		store, err := runstore.Open(ctx, url)
		if err == nil {
			if err = logEpoch(ctx, store, log); err != nil {
				err = errors.Join(err, store.Close())
			}
		}
		result <- opened{store, err}
	}()
	select {
	case r := <-result:
		return r.store, r.err
	case <-overdue.Done():
		return nil, context.Cause(ctx)
	}
}

// closeStore closes a store, or abandons it when overdue ends. Acknowledged writes are stored
// either way.
func closeStore(overdue context.Context, store runstore.RunStore, log *slog.Logger) {
	result := make(chan error, 1)
	go func() { result <- store.Close() }()
	select {
	case err := <-result:
		if err != nil {
			log.Error("the store did not close cleanly; what it acknowledged is stored", "error", err)
		}
	case <-overdue.Done():
		log.Warn("the store did not close in time; what it acknowledged is stored")
	}
}

// listenProbes listens on the address of the probes; nil if there are none. Several servers on one host
// share the default address, so that a failure to listen on it is a warning. At an address that the
// operator gave, another server would answer for this one.
func listenProbes(cfg serveConfig, log *slog.Logger) (net.Listener, error) {
	if cfg.probes == "" {
		return nil, nil
	}
	lis, err := net.Listen("tcp", cfg.probes)
	switch {
	case err == nil:
		return lis, nil
	case cfg.probesGiven:
		return nil, fmt.Errorf("--healthz-listen: %w", err)
	}
	log.Warn("no probes", "healthz-listen", cfg.probes, "error", err)
	return nil, nil
}

// serveProbes serves probes in the background until stop is called.
func serveProbes(probes *tapeserver.Probes, lis net.Listener, conns *clientlimit.Conns, log *slog.Logger) (stop func()) {
	if lis == nil {
		return func() {}
	}
	log.Info("probes", "http", lis.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if err := probes.Serve(ctx, conns.Listen(lis), log); err != nil {
			log.Warn("probes ended", "error", err)
		}
	}()
	return cancel
}
