package tapeserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// pingTimeout bounds how long a probe waits for the store.
const pingTimeout = 5 * time.Second

// Probes answers an orchestrator's questions over HTTP: /healthz (and /), whether
// the process lives, and /readyz, whether its store answers.
func (s *Server) Probes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/":
			answer(w, http.StatusOK, "ok\n")
		case "/readyz":
			s.ready(w, r)
		default:
			answer(w, http.StatusNotFound, "not found\n")
		}
	})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.draining:
		answer(w, http.StatusServiceUnavailable, "shutting down\n")
		return
	default:
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	if err := s.tape.Ping(ctx); err != nil {
		answer(w, http.StatusServiceUnavailable, fmt.Sprintf("store ping failed: %v\n", err))
		return
	}
	answer(w, http.StatusOK, "ok\n")
}

func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Connection", "close")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // the prober is gone if this fails
}

// ServeProbes answers probes on lis until ctx ends.
func (s *Server) ServeProbes(ctx context.Context, lis net.Listener) error {
	server := &http.Server{Handler: s.Probes(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(lis); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
