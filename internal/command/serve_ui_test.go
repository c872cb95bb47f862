package command

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/certtest"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
)

const uiPrincipals = `principals:
- {name: reader, role: read, token: reader-reader-reader-reader}
- {name: worker, role: drive, token: worker-worker-worker-worker}
- {name: boss, role: operate, token: boss-boss-boss-boss-boss}
- {name: tenant, role: operate, tenants: [acme], token: tenant-tenant-tenant-tenant}
`

// principalsFile returns a configuration with these principals.
func principalsFile(t *testing.T) securityConfig {
	t.Helper()
	c := securityConfig{principals: filepath.Join(t.TempDir(), "principals.yaml")}
	if err := os.WriteFile(c.principals, []byte(uiPrincipals), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// uiUnderTest serves the page over a store with one leased run, and returns its address.
func uiUnderTest(t *testing.T, c securityConfig) (address string, granted runstore.Granted) {
	t.Helper()
	store := memory.New(nil).Open()
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	granted, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: runstore.MaxTTL}})
	if err != nil {
		t.Fatal(err)
	}
	opts := tapeserver.Options{
		Logger: slog.New(slog.DiscardHandler), Limits: tapeserver.Limits{HandshakeTimeout: hang, ReceiveTimeout: hang},
	}
	if err := c.secure(t.Context(), &opts); err != nil {
		t.Fatal(err)
	}
	lis, err := listenUI(serveConfig{ui: "127.0.0.1:0", security: c}, opts.Logger)
	if err != nil {
		t.Fatal(err)
	}
	stop := serveUI(lis, newHTTPConns(opts.Logger).inspector, store, opts)
	t.Cleanup(func() {
		stop(context.WithoutCancel(t.Context()))
		if c, err := net.Dial("tcp", lis.Addr().String()); err == nil {
			t.Error("the page is still served", c.Close())
		}
		_ = store.Close()
	})
	return lis.Addr().String(), granted
}

// uiRequest makes a request with a bearer token, and returns the status and the body.
func uiRequest(t *testing.T, client *http.Client, method, url, token, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// The page under serve admits the principals of the gRPC port, over its TLS, in both versions of
// HTTP.
func TestUIRoles(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), certtest.New(t, "ca")
	var c securityConfig
	c.files.Cert, c.files.Key = ca.Server(t, "127.0.0.1").Write(t, dir)
	c.principals = filepath.Join(dir, "principals.yaml")
	if err := os.WriteFile(c.principals, []byte(uiPrincipals), 0o600); err != nil {
		t.Fatal(err)
	}
	address, granted := uiUnderTest(t, c)
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{protocol}}, ForceAttemptHTTP2: protocol == "h2"}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		if code, body := uiRequest(t, client, "GET", "https://"+address+"/", "", ""); code != http.StatusOK || !strings.Contains(body, "<html") {
			t.Errorf("%s: the page: %d", protocol, code)
		}
		for token, want := range map[string]int{
			"": 401, "unknown-unknown-unknown": 401, "tenant-tenant-tenant-tenant": 403,
			"reader-reader-reader-reader": 200, "worker-worker-worker-worker": 200, "boss-boss-boss-boss-boss": 200,
		} {
			if code, body := uiRequest(t, client, "GET", "https://"+address+"/api/runs", token, ""); code != want || strings.Contains(body, `"run"`) != (want == 200) {
				t.Errorf("%s: runs with the token %q: %d %s, want %d", protocol, token, code, body, want)
			}
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}}
	defer client.CloseIdleConnections()
	request := `{"run":"run","token":"` + strconv.FormatInt(int64(granted.Lease.Token), 10) + `","operator":"boss","reason":"stuck"}`
	for _, b := range []struct {
		token string
		want  int
	}{{"worker-worker-worker-worker", 403}, {"boss-boss-boss-boss-boss", 200}} {
		code, body := uiRequest(t, client, "POST", "https://"+address+"/api/break", b.token, request, "Content-Type", "application/json", "X-Tapestore-Inspector", "break")
		if code != b.want {
			t.Errorf("break with %s: %d %s, want %d", b.token, code, body, b.want)
		}
	}
}

// Refusals of the page are in the log with their reasons and without the token, and no more of them
// than those of the gRPC port.
func TestUIRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	c := principalsFile(t)
	var log bytes.Buffer
	opts := tapeserver.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	if err := c.secure(t.Context(), &opts); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		access := uiAccess(opts)
		ask := func(token string) {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/api/runs", nil)
			r.RemoteAddr = "192.0.2.7:4711"
			r.Header.Set("Authorization", "Bearer "+token)
			_, _ = access(r)
		}
		ask("reader-reader-reader-reader")
		if log.Len() > 0 {
			t.Errorf("a request that is admitted: %s", log.String())
		}
		for token, want := range map[string]string{
			"unknown-unknown-unknown":     `peer=192.0.2.7 principal="" reason="unauthenticated: the token is not known" not_logged=0`,
			"tenant-tenant-tenant-tenant": `peer=192.0.2.7 principal=tenant reason="the page shows the runs of all tenants, and the principal is limited to some" not_logged=0`,
		} {
			log.Reset()
			ask(token)
			if text := log.String(); !strings.Contains(text, want) || strings.Contains(text, token) {
				t.Errorf("the log is %q, want %q", text, want)
			}
		}
		log.Reset()
		for range 100 {
			ask("unknown-unknown-unknown")
		}
		if n := strings.Count(log.String(), "\n"); n != 8 { // ten at once
			t.Errorf("%d refusals are logged at once, want 8 more", n)
		}
		time.Sleep(time.Second)
		log.Reset()
		ask("unknown-unknown-unknown")
		if text := log.String(); !strings.Contains(text, "not_logged=92") {
			t.Errorf("a second later the log is %q", text)
		}
	})
}

// Without authentication the page reads only, and answers to no name but those of this machine.
func TestUIWithoutPrincipals(t *testing.T) {
	t.Parallel()
	address, granted := uiUnderTest(t, securityConfig{})
	if code, _ := uiRequest(t, http.DefaultClient, "GET", "http://"+address+"/api/runs", "", ""); code != http.StatusOK {
		t.Errorf("runs: %d", code)
	}
	if code, _ := uiRequest(t, http.DefaultClient, "GET", "http://"+address+"/api/runs", "", "", "Host", "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("runs by another name: %d", code)
	}
	request := `{"run":"run","token":"` + strconv.FormatInt(int64(granted.Lease.Token), 10) + `","operator":"boss","reason":"stuck"}`
	if code, body := uiRequest(t, http.DefaultClient, "POST", "http://"+address+"/api/break", "", request, "Content-Type", "application/json", "X-Tapestore-Inspector", "break"); code != http.StatusForbidden {
		t.Errorf("break: %d %s", code, body)
	}
}
