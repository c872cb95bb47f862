// Package local starts this module's server on loopback, for the protocol suite.
package local

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/internal/loopback"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
)

// Execute runs the protocol suite outside go test against this module's server on an empty store of
// the harness; see protocol.Execute. second, if not nil, is used as Target.Second.
//
// Errors: the server did not start, or did not answer.
func Execute(ctx context.Context, h conformance.Harness, mode tape.FenceMode, second func(t conformance.T) string,
	pattern *regexp.Regexp, done func()) (report conformance.Report, err error) {
	broke, messages := conformance.RunPlain(ctx, "server", func(t conformance.T) {
		target, s := start(t, h, mode)
		target.Second = second
		if report, err = protocol.Execute(t.Context(), target, pattern, done); err != nil {
			return
		}
		report.Engine, report.Version, report.Tier = "unknown", "unknown", "unknown"
		if d, ok := runstore.As[runstore.Describer](s.store); ok {
			about, failure := d.Describe(t.Context())
			report.Engine, report.Version, report.Tier, err = about.Engine, about.Version, about.Tier, failure
		}
		if h.Tier != "" {
			report.Tier = h.Tier
		}
	})
	if broke {
		err = errors.Join(err, errors.New(strings.Join(messages, "; ")))
	}
	return report, err
}

// Start serves an empty store of the harness, with HTTP probes, until the end of the test.
func Start(t conformance.T, h conformance.Harness, mode tape.FenceMode) protocol.Target {
	t.Helper()
	target, _ := start(t, h, mode)
	return target
}

func start(t conformance.T, h conformance.Harness, mode tape.FenceMode) (protocol.Target, *served) {
	t.Helper()
	s := open(t, h, mode)
	probes := &tapeserver.Probes{}
	probes.SetServer(s.server)
	return protocol.Target{
		Address: s.address,
		Probes:  serveHTTP(t, probes),
		Costly:  h.Costly,
		Beside: func(t conformance.T) string {
			beside := &served{mode: mode, open: s.open}
			beside.start(t)
			t.Cleanup(func() { beside.stop() })
			return beside.address
		},
		Private: func(t conformance.T) (string, func()) {
			s := open(t, h, mode)
			return s.address, func() { s.restart(t) }
		},
		Replicas: func(t conformance.T, n int) []protocol.Replica { return replicas(t, h, mode, n) },
	}, s
}

// drainTimeout is how long a stopping server waits for its calls: 200 ms, because a restart
// simulates a crash.
const drainTimeout = 200 * time.Millisecond

// served is a store and the server that serves it.
type served struct {
	mode    tape.FenceMode
	open    func(context.Context) (runstore.RunStore, error)
	address string
	// matcherTTL is tapeserver.Options.MatcherTTL.
	matcherTTL time.Duration

	store  runstore.RunStore
	server *tapeserver.Server
	stop   func()
}

func open(t conformance.T, h conformance.Harness, mode tape.FenceMode) *served {
	t.Helper()
	s := &served{mode: mode, open: h.New(t).Open}
	s.start(t)
	t.Cleanup(func() { s.stop() })
	return s
}

// start serves the store at its address.
func (s *served) start(t conformance.T) {
	t.Helper()
	store, err := s.open(t.Context())
	if err != nil {
		t.Fatalf("open the store: %v", err)
	}
	lis, err := loopback.ListenAgain(t.Context(), s.address)
	if err != nil {
		_ = store.Close()
		t.Fatalf("listen: %v", err)
	}
	s.store, s.address = store, lis.Addr().String()
	s.server = tapeserver.New(store, &tapeserver.Options{
		Fence: s.mode, Logger: slog.New(slog.DiscardHandler), DrainTimeout: drainTimeout,
		MatcherTTL: s.matcherTTL,
		// The default may pass on a busy machine before a client's first connection is made.
		Limits: tapeserver.Limits{HandshakeTimeout: 5 * time.Minute},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(ctx, lis) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = lis.Close() // a drain that timed out may leave it open
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
}

// restart stops the server at once and starts it again.
func (s *served) restart(t conformance.T) {
	t.Helper()
	s.stop()
	s.start(t)
}

func serveHTTP(t conformance.T, h http.Handler) (url string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis) // returns on Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "http://" + lis.Addr().String()
}
