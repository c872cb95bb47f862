package alloydb

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/alloydbconn"
	"cloud.google.com/go/alloydbconn/errtype"
	"google.golang.org/api/googleapi"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestRefusesWrongTokens(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	wrong := alloydbconn.WithIAMAuthNTokenSource(tokenSource("wrong"))
	for name, c := range map[string]struct {
		opts []alloydbconn.Option
		want string
	}{
		"IAM":      {[]alloydbconn.Option{wrong, alloydbconn.WithIAMAuthN()}, "IAM authentication failed: the OAuth2 token is not the one"},
		"password": {[]alloydbconn.Option{wrong}, "permission alloydb.instances.connect denied: the OAuth2 token is not the one"},
		"Admin API": {[]alloydbconn.Option{alloydbconn.WithTokenSource(tokenSource("wrong"))},
			"the request does not carry the token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := connect(t, s, newDialer(t, s, c.opts...), s.Instance())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("connect: %v, want an error with %q", err, c.want)
			}
		})
	}
}

// The connector gives up on any status but 503, which it repeats.
func TestAdminRefusesAndRecovers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, Options{})
			d := newDialer(t, s)
			s.RefuseAdmin(status)
			_, err := connect(t, s, d, s.Instance())
			if _, ok := errors.AsType[*errtype.RefreshError](err); !ok {
				t.Errorf("connect: %v, want a RefreshError", err)
			}
			if e, ok := errors.AsType[*googleapi.Error](err); !ok || e.Code != status || !strings.Contains(e.Message, "makes the emulator refuse") {
				t.Errorf("connect: %v, want status %d and the reason", err, status)
			}
			if got := s.Stats(); got.AdminRefused == 0 || got.Certificates != 0 {
				t.Errorf("stats after the refusal: %+v", got)
			}
			s.RefuseAdmin(0)
			mustConnect(t, s, d, s.Instance())
		})
	}
}

// An outage of the Admin API is no outage of the database: connections go on, and
// new ones are made with the certificate at hand.
func TestAdminOutageLeavesConnectionsAlone(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	d := newDialer(t, s)
	c := mustConnect(t, s, d, s.Instance())
	s.RefuseAdmin(http.StatusServiceUnavailable)
	mustQuery(t, c)
	mustConnect(t, s, d, s.Instance())
}

func TestUnknownInstance(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	_, err := connect(t, s, newDialer(t, s), instanceURI("absent"))
	if e, ok := errors.AsType[*googleapi.Error](err); !ok || e.Code != http.StatusNotFound {
		t.Errorf("connect: %v, want status 404", err)
	}
	if conn, err := s.dial(t.Context(), "tcp", "10.0.0.3:5433"); err == nil {
		_ = conn.Close()
		t.Error("an address of nothing could be dialled")
	}
}

func TestRefusesConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	d := newDialer(t, s)
	before := mustConnect(t, s, d, s.Instance())
	for name, reason := range map[string]string{
		"short": "the instance is stopped",
		"long":  strings.Repeat("für ", 8<<10), // beyond the connector's buffer
	} {
		s.RefuseConnections(reason)
		if _, err := connect(t, s, d, s.Instance()); err == nil || !strings.Contains(err.Error(), reason[:20]) {
			t.Errorf("%s reason: connect: %v, want it", name, err)
		}
	}
	if got := s.Stats().Refused; got != 2 {
		t.Errorf("refused connections: %d, want 2", got)
	}
	mustQuery(t, before)
	s.RefuseConnections("")
	mustConnect(t, s, d, s.Instance())
}

func TestWithoutPostgres(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	s := startServer(t, Options{address: l.Addr().String()})
	_, err = connect(t, s, newDialer(t, s), s.Instance())
	if want := "the PostgreSQL server behind the emulator does not answer"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("connect: %v, want an error with %q", err, want)
	}
}

// Whoever does not say hello, or not as the connector does, is dropped.
func TestDropsStrangers(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{exchangeTimeout: 6 * time.Second})
	t.Run("strangers", func(t *testing.T) {
		for name, stranger := range map[string]func(t *testing.T) net.Conn{
			"silent before TLS": func(t *testing.T) net.Conn {
				conn, err := s.dial(t.Context(), "tcp", instances[0].private+":"+proxyPort)
				if err != nil {
					t.Fatal(err)
				}
				return conn
			},
			"plain PostgreSQL": func(t *testing.T) net.Conn {
				conn, err := s.dial(t.Context(), "tcp", instances[0].private+":"+proxyPort)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}) // SSLRequest
				return conn
			},
			"silent after TLS": func(t *testing.T) net.Conn { return newRawClient(t, s).handshake(t) },
			"PostgreSQL without the exchange": func(t *testing.T) net.Conn {
				conn := newRawClient(t, s).handshake(t)
				_, _ = conn.Write([]byte("\x00\x00\x00\x17\x00\x03\x00\x00user\x00postgres\x00\x00")) // StartupMessage
				return conn
			},
			"a hello too long": func(t *testing.T) net.Conn {
				conn := newRawClient(t, s).handshake(t)
				_, _ = conn.Write([]byte{0xff, 0, 0, 0})
				return conn
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // each waits for the timeout
				conn := stranger(t)
				defer conn.Close()
				_ = conn.SetReadDeadline(time.Now().Add(hosttest.Hang))
				if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("still connected: %v", err)
				}
			})
		}
	})
	hosttest.WaitFor(t, "all are counted as refused", func() bool { return s.Stats().Refused == 5 })
	if got := s.Stats(); got.Open != 0 || got.Password != 0 {
		t.Errorf("stats: %+v, want nobody let in", got)
	}
}
