package command

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
)

// httpListeners serve on lis until ctx ends.
var httpListeners = map[string]func(ctx context.Context, lis net.Listener, log *slog.Logger){
	"probes": func(ctx context.Context, lis net.Listener, log *slog.Logger) {
		_ = new(tapeserver.Probes).Serve(ctx, newHTTPConns(log).probes.Listen(lis), log)
	},
	"metrics": func(ctx context.Context, lis net.Listener, log *slog.Logger) {
		server := newScrapeServer(prometheus.NewRegistry(), log)
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		_ = server.Serve(newHTTPConns(log).metrics.Listen(lis))
	},
	"inspector": func(ctx context.Context, lis net.Listener, log *slog.Logger) {
		store := memory.New(nil).Open()
		defer func() { _ = store.Close() }()
		stop := serveUI(lis, newHTTPConns(log).inspector, store, tapeserver.Options{Logger: log})
		<-ctx.Done()
		stop(ctx)
	},
}

// inMemory serves on connections in memory until the test ends.
func inMemory(t *testing.T, serve func(context.Context, net.Listener, *slog.Logger)) *bufconn.Listener {
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); serve(ctx, lis, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() { cancel(); <-served })
	return lis
}

// A client of an HTTP listener that draws its request out, or does nothing, loses its connection; one
// client does not get all connections. It takes fake time, and the timeouts of the command.
func TestSlowHTTPClientsAreCut(t *testing.T) {
	t.Parallel()
	const request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for name, serve := range httpListeners {
		for _, c := range []struct {
			name   string
			within time.Duration
			write  func(c net.Conn) error
		}{
			{"silence", 5 * time.Second, func(net.Conn) error { return nil }},
			{"headers, byte by byte", 5 * time.Second, func(c net.Conn) error {
				for i := range request {
					time.Sleep(time.Second)
					if _, err := c.Write([]byte(request)[i : i+1]); err != nil {
						return err
					}
				}
				return nil
			}},
			{"endless headers", time.Second, func(c net.Conn) error {
				_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"+strings.Repeat("X: y\r\n", 20_000))
				return err
			}},
			{"a body that never comes", 10 * time.Second, func(c net.Conn) error {
				_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")
				return err
			}},
			{"idle after a request", time.Minute, func(c net.Conn) error {
				_, err := io.WriteString(c, request)
				return err
			}},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					lis := inMemory(t, serve)
					conn, err := lis.DialContext(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					began := time.Now()
					written := make(chan error, 1)
					go func() { written <- c.write(conn) }()
					_, _ = io.Copy(io.Discard, conn)
					if d := time.Since(began); d > c.within {
						t.Errorf("the connection was closed after %v, want at most %v", d, c.within)
					}
					<-written
				})
			})
		}
		t.Run(name+"/many connections", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lis := inMemory(t, serve)
				most := map[string]int{"probes": maxProbes, "metrics": maxScrapes, "inspector": maxBrowsers}[name]
				if name == "inspector" {
					most = clientlimit.Share(most)
				} else {
					most /= 2
				}
				for i := range most + 1 { // of one address
					conn, err := lis.DialContext(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					if i < most {
						continue
					}
					began := time.Now()
					if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(began) != 0 {
						t.Errorf("connection %d: %v after %v, want that it is closed at once", i, err, time.Since(began))
					}
				}
				synctest.Wait()
			})
		})
	}
}

// TestUIRates checks that requests to the page's API wait for their turn, as calls do, and are then refused.
func TestUIRates(t *testing.T) {
	t.Parallel()
	c := principalsFile(t)
	opts := tapeserver.Options{Logger: slog.New(slog.DiscardHandler), Limits: tapeserver.Limits{CallsPerSecond: 1}}
	if err := c.secure(t.Context(), &opts); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]tapeserver.Options{
		"principals": opts, "addresses": {Logger: opts.Logger, Limits: opts.Limits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				access := uiAccess(o)
				ask := func(token, peer string) error {
					r := httptest.NewRequestWithContext(t.Context(), "GET", "/api/runs", nil)
					r.RemoteAddr = peer
					r.Header.Set("Authorization", "Bearer "+token)
					_, err := access(r)
					return err
				}
				const reader, worker = "reader-reader-reader-reader", "worker-worker-worker-worker"
				began := time.Now()
				for range 4 { // two at once, and two that wait
					if err := ask(reader, "192.0.2.7:1"); err != nil {
						t.Fatal(err)
					}
				}
				if d := time.Since(began); d != 2*time.Second {
					t.Errorf("four requests take %v, want 2 s", d)
				}
				if err := ask(worker, "192.0.2.8:1"); err != nil || time.Since(began) != 2*time.Second {
					t.Errorf("another client waits until %v: %v", time.Since(began), err)
				}
				results := make(chan error, 10)
				for range 10 {
					go func() { results <- ask(reader, "192.0.2.7:2") }()
				}
				synctest.Wait()
				if n := len(results); n != 5 {
					t.Errorf("%d requests are refused at once, want 5", n)
				}
				refused := 0
				for range 10 {
					if err := <-results; errors.Is(err, inspector.ErrTooMany) {
						refused++
					} else if err != nil {
						t.Error(err)
					}
				}
				if refused != 5 {
					t.Errorf("%d requests are refused, want 5", refused)
				}
				began = time.Now()
				if name == "principals" { // a refused request does not wait
					for range 10 {
						if err := ask("unknown-unknown-unknown", "192.0.2.9:1"); !errors.Is(err, inspector.ErrUnauthenticated) {
							t.Error(err)
						}
					}
					if d := time.Since(began); d != 0 {
						t.Errorf("requests without credentials take %v", d)
					}
				}
			})
		})
	}
}

// The rate of tapestore ui is that of all its requests.
func TestUICommandRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		access := (&uiConfig{perSecond: 1}).authorize("token")
		began := time.Now()
		for range 3 {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\n\r\n")))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := access(r.WithContext(t.Context())); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("three requests take %v, want 1 s", d)
		}
	})
}
