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
)

// maxProbes is how many connections the probes have open at once. They are closed after each answer.
const maxProbes = 64

// Probes answers an orchestrator's questions over HTTP: /healthz (and /), whether
// the process lives, and /readyz, whether its store answers. The answers are fixed texts: why a
// store does not answer is in the log, since anybody may ask. Until SetServer /readyz says that
// the server is starting. The zero Probes is ready for use.
type Probes struct {
	server atomic.Pointer[Server]
}

// SetServer makes /readyz ask the store of server.
func (p *Probes) SetServer(server *Server) { p.server.Store(server) }

// ServeHTTP answers one probe.
func (p *Probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz", "/":
		answer(w, http.StatusOK, "ok\n")
	case "/readyz":
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
	_, _ = io.WriteString(w, body) // the prober is gone if this fails
}

// Serve answers probes on lis until ctx ends.
func (p *Probes) Serve(ctx context.Context, lis net.Listener, log *slog.Logger) error {
	server := &http.Server{
		Handler: p, MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadTimeout: 5 * time.Second, WriteTimeout: 2 * pingTimeout,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(newListener(lis, Limits{Connections: maxProbes}.withDefaults(), log)); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
