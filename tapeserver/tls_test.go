package tapeserver_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/certs"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// secured is a server with TLS and its files.
type secured struct {
	dir   string
	ca    *certtest.CA
	certs *certs.Store
	auth  *auth.Checker
}

// secure returns the options of a server with mutual TLS, whose principals are the common names
// "reader" and "driver".
func secure(t *testing.T) (secured, *tapeserver.Options) {
	t.Helper()
	s := secured{dir: t.TempDir(), ca: certtest.New(t, "ca")}
	f := certs.Files{
		ClientCA:  certtest.Write(t, s.dir, "ca.pem", s.ca.PEM),
		ClientCRL: certtest.Write(t, s.dir, "crl.pem", s.ca.CRL(t, time.Now().Add(time.Hour), nil)),
	}
	f.Cert, f.Key = s.ca.Server(t).Write(t, s.dir)
	var err error
	if s.certs, err = certs.Load(f, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "principals.yaml")
	text := "principals:\n  - {name: reader, role: read, certificate: CN=reader}\n  - {name: driver, role: drive, certificate: CN=driver}\n" +
		"  - {name: token, role: operate, token: " + tokenOf("token") + "}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.auth, err = auth.New(auth.Options{File: path, Certificates: true}); err != nil {
		t.Fatal(err)
	}
	return s, &tapeserver.Options{TLS: s.certs, Auth: s.auth, AuthInterval: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
}

// dialTLS returns a connection with a client's certificate.
func dialTLS(t *testing.T, address string, roots *certtest.CA, client certtest.Pair) *grpc.ClientConn {
	t.Helper()
	config := &tls.Config{RootCAs: roots.Pool(), MinVersion: tls.VersionTLS12}
	if client.Cert != nil {
		config.Certificates = []tls.Certificate{client.TLS(t)}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestCertificatesAsCredentials(t *testing.T) {
	t.Parallel()
	s, opts := secure(t)
	address, _ := listen(t, memory.New(nil).Open(), opts)
	getRun := func(conn *grpc.ClientConn, ctx context.Context) error {
		_, err := tapepb.NewTapeClient(conn).GetRun(ctx, &tapepb.GetRunRequest{RunId: "r"})
		return err
	}
	reader, stranger := dialTLS(t, address, s.ca, s.ca.Client(t, "reader")), dialTLS(t, address, s.ca, s.ca.Client(t, "stranger"))
	wantStatus(t, "a reader reads", getRun(reader, t.Context()), codes.NotFound, "")
	_, err := tapepb.NewTapeClient(reader).BeginRun(t.Context(), beginRequest("i"))
	wantStatus(t, "a reader writes", err, codes.PermissionDenied, "BeginRun needs the role drive, and reader has the role read")
	wantStatus(t, "a certificate without a principal", getRun(stranger, t.Context()), codes.Unauthenticated, "belongs to no principal")
	wantStatus(t, "the same with a token", getRun(stranger, as(t.Context(), "token")), codes.NotFound, "")
	wantStatus(t, "a bad token beside a certificate", getRun(reader, as(t.Context(), "other")), codes.Unauthenticated, "not known")
	if _, err := tapepb.NewTapeClient(dialTLS(t, address, s.ca, s.ca.Client(t, "driver"))).BeginRun(t.Context(), beginRequest("i")); err != nil {
		t.Errorf("a driver writes: %v", err)
	}
	wantStatus(t, "no certificate", getRun(dialTLS(t, address, s.ca, certtest.Pair{}), t.Context()), codes.Unavailable, "")
	wantStatus(t, "in clear text", getRun(connection(t, address), t.Context()), codes.Unavailable, "")
}

// TestRotationUnderOpenStreams replaces the server's certificate while a stream is open: the stream
// goes on, and new connections see the new certificate. Then it revokes the client.
func TestRotationUnderOpenStreams(t *testing.T) {
	t.Parallel()
	s, opts := secure(t)
	address, _ := listen(t, memory.New(nil).Open(), opts)
	driver := s.ca.Client(t, "driver")
	conn := dialTLS(t, address, s.ca, driver)
	c := tapepb.NewTapeClient(conn)
	run := begin(t, c, "i")
	stream, err := c.SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: run.GetRunId()})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	next := certtest.New(t, "next")
	next.Server(t).Write(t, s.dir)
	if changed, err := s.certs.Reload(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if _, err := tapepb.NewTapeClient(dialTLS(t, address, next, driver)).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run.GetRunId()}); err != nil {
		t.Errorf("a connection after the rotation: %v", err)
	}
	_, err = tapepb.NewTapeClient(dialTLS(t, address, s.ca, driver)).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run.GetRunId()})
	wantStatus(t, "a client that trusts the former authority alone", err, codes.Unavailable, "unknown authority")
	if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run.GetRunId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("the open stream: %v", err)
	}

	certtest.Write(t, s.dir, "crl.pem", s.ca.CRL(t, time.Now().Add(time.Hour), nil, driver))
	if changed, err := s.certs.Reload(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	_, err = stream.Recv()
	wantStatus(t, "the stream of a revoked client", err, codes.Unauthenticated, "revoked")
	_, err = c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run.GetRunId()})
	wantStatus(t, "a call on its open connection", err, codes.Unauthenticated, "revoked")
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	wantStatus(t, "a probe on it", err, codes.Unauthenticated, "revoked")
	_, err = tapepb.NewTapeClient(dialTLS(t, address, next, driver)).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run.GetRunId()})
	wantStatus(t, "its new connection", err, codes.Unavailable, "")
}

// TestStartingSpeaksTLS calls a server whose store is not open yet.
func TestStartingSpeaksTLS(t *testing.T) {
	t.Parallel()
	s, opts := secure(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	defer tapeserver.ServeStarting(lis.(*net.TCPListener), *patient(opts))()
	address := lis.Addr().String()
	conn := dialTLS(t, address, s.ca, s.ca.Client(t, "reader"))
	if res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || res.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("Check = %v, %v", res, err)
	}
	_, err = tapepb.NewTapeClient(conn).GetRun(t.Context(), &tapepb.GetRunRequest{})
	wantStatus(t, "GetRun", err, codes.Unavailable, "the server is starting")
	for what, conn := range map[string]*grpc.ClientConn{"in clear text": connection(t, address), "without a certificate": dialTLS(t, address, s.ca, certtest.Pair{})} {
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		wantStatus(t, what, err, codes.Unavailable, "")
	}
}

// TestHandshakesHaveToEnd connects clients that begin a handshake and do not go on. The server closes
// their connections and serves others meanwhile.
func TestHandshakesHaveToEnd(t *testing.T) {
	t.Parallel()
	s, opts := secure(t)
	opts.Limits.HandshakeTimeout = 50 * time.Millisecond
	address, _ := listen(t, memory.New(nil).Open(), opts)
	hello := make(chan []byte, 1)
	go func() { // the beginning of a real handshake
		client, server := net.Pipe()
		defer func() { _ = server.Close() }()
		go func() {
			_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() // fails when the pipe is closed
			_ = client.Close()
		}()
		buf := make([]byte, 4096)
		n, _ := server.Read(buf)
		hello <- buf[:n]
	}()
	greeting := <-hello
	for name, bytes := range map[string][]byte{"silent": nil, "slow": greeting[:len(greeting)/2], "without an end": greeting} {
		slow, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = slow.Close() }()
		if _, err := slow.Write(bytes); err != nil {
			t.Fatal(err)
		}
		client := tapepb.NewTapeClient(dialTLS(t, address, s.ca, s.ca.Client(t, "reader")))
		get := func() error {
			_, err := client.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"}, grpc.WaitForReady(true))
			return err
		}
		for err = get(); status.Code(err) == codes.Unavailable; err = get() { // on a busy machine the timeout may cut this handshake too
		}
		wantStatus(t, "another client", err, codes.NotFound, "")
		if _, err := io.Copy(io.Discard, slow); err != nil && !errors.Is(err, syscall.ECONNRESET) { // until the server closes it
			t.Errorf("%s: %v", name, err)
		}
	}
}
