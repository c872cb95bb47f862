package tapeserver

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/clientlimit"
)

const (
	// maxProbes is the number of open connections of probes. They are closed after each reply.
	maxProbes = 64
	// maxProbesPerAddress is the number of those of one client, so that a client that keeps connections
	// open does not keep an orchestrator's probes out.
	maxProbesPerAddress = maxProbes / 2
)

// Probes serves an orchestrator's probes over HTTP: /healthz (and /) reports whether the process
// lives, /readyz whether its store responds. There is no authentication, so their replies are fixed
// texts, and the log has the reason why a store does not respond. Until SetServer, /readyz reports
// that the server is starting. /readyz?verbose lists each check with the time that the store takes,
// the epoch and the numbers of the matcher's shards: no names, no addresses and no errors. Concurrent
// probes share one ping of the store and one read of its epochs. The zero Probes is ready for use.
type Probes struct {
	server atomic.Pointer[Server]
}

// SetServer makes /readyz report the state of server's store.
func (p *Probes) SetServer(server *Server) { p.server.Store(server) }

// ServeHTTP answers one probe.
func (p *Probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz", "/":
		answer(w, http.StatusOK, "ok\n")
	case "/readyz":
		if r.URL.Query().Has("verbose") {
			p.verbose(w, r)
			return
		}
		if problem := p.notReady(r.Context()); problem != "" {
			answer(w, http.StatusServiceUnavailable, problem+"\n")
			return
		}
		answer(w, http.StatusOK, "ok\n")
	default:
		answer(w, http.StatusNotFound, "not found\n")
	}
}

func (p *Probes) notReady(ctx context.Context) string {
	s := p.server.Load()
	if s == nil {
		return "starting"
	}
	if s.drain.Err() != nil {
		return "shutting down"
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if s.health.ask(ctx) != nil {
		return "the store does not answer"
	}
	return ""
}

func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Connection", "close")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // an error means that the prober is gone
}

// Serve answers probes on lis until ctx ends.
func (p *Probes) Serve(ctx context.Context, lis net.Listener, log *slog.Logger) error {
	server := &http.Server{
		Handler: p, MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadTimeout: 5 * time.Second, WriteTimeout: 2 * pingTimeout,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limits := clientlimit.NewConns(clientlimit.ConnsOptions{Total: maxProbes, PerAddress: maxProbesPerAddress, Listener: "probes", Log: log})
	if err := server.Serve(limits.Listen(lis)); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
