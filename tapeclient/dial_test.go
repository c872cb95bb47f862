package tapeclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"tape://localhost:7878": "localhost:7878", "grpc://10.0.0.1:1": "10.0.0.1:1", "host:99": "host:99",
		"host": "host:7878", "tape://host": "host:7878", "tape://host:": "host:7878", "[::1]:5": "[::1]:5", "tape://[::1]": "[::1]:7878",
		"tapes://host": "TLS host:443", "grpcs://host:8443": "TLS host:8443", "tapes://[::1]": "TLS [::1]:443",
		"": "", "tape://": "", "http://host": "", "tape://host:1/path": "", "tape://u@host": "", "::1": "", "a:b:c": "", "[::1": "", ":7878": "",
		"localhost:http8": "", "tape://localhost:99999": "", "localhost:-1": "", "localhost:0": "", "localhost:+1": "", "[::1]]:7878": "", "[::1]]": "",
	} {
		address, secure, err := parse(url)
		if secure {
			address = "TLS " + address
		}
		if address != want || (err != nil) != (want == "") || err != nil && !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("parse(%q) = %q, %v; want %q", url, address, err, want)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial("localhost:1", nil)
	if err != nil || !strings.HasPrefix(c.Owner(), host+":") && os.Getenv("TAPE_LEASE_OWNER") == "" {
		t.Errorf("owner %q, %v, want %s:PID", c.Owner(), err, host)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Options{{Lease: lease.Options{TTL: time.Nanosecond}}, {RetryTimeout: -1}} {
		if _, err := Dial("localhost:1", &bad); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("Dial with %+v = %v, want ErrInvalid", bad, err)
		}
	}
}

// tapes:// encrypts, and verifies the server.
func TestTLS(t *testing.T) {
	t.Parallel()
	https := httptest.NewUnstartedServer(nil) // for its certificate
	https.StartTLS()
	defer https.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: https.TLS.Certificates})))
	healthpb.RegisterHealthServer(server, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	defer func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(https.Certificate())
	trusting := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"}))
	for name, x := range map[string]struct {
		url  string
		dial []grpc.DialOption
		ok   bool
	}{
		"with its certificate":      {"tapes://" + lis.Addr().String(), []grpc.DialOption{trusting}, true},
		"with an unknown authority": {"tapes://" + lis.Addr().String(), nil, false},
		"in plaintext":              {"tape://" + lis.Addr().String(), nil, false},
	} {
		c, err := Dial(x.url, nil, x.dial...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = healthpb.NewHealthClient(c.cc).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if (err == nil) != x.ok {
			t.Errorf("%s: %v, want success %t", name, err, x.ok)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
