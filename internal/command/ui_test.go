package command

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// startUI runs the command ui until the test ends, and returns the address that it prints and a
// function that stops it.
func startUI(t *testing.T, cfg uiConfig) (page string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	cfg.out, cfg.notes, cfg.listen = in, io.Discard, "0"
	ended := make(chan error, 1)
	go func() {
		err := cfg.run(ctx)
		_ = in.CloseWithError(err)
		ended <- err
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("the command ended: %v", err)
	}
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end: %v", err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return strings.TrimSpace(line), stop
}

// The page and its API answer at the printed address, for the token in it alone, and break a lease with
// --allow-break alone.
func TestUI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tape.db")
	store := openNew(t, "sqlite:"+file)
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []bool{false, true} {
		opened := make(chan string, 1)
		page, stop := startUI(t, uiConfig{url: file, allowBreak: allowed, open: true, openFile: func(name string) error {
			text, err := os.ReadFile(name)
			info, err2 := os.Stat(name)
			if err != nil || err2 != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the file that opens the page: %v, %v, %v", info, err, err2)
			}
			opened <- name + "\n" + string(text)
			return nil
		}})
		address, token, ok := strings.Cut(page, "/#token=")
		if !ok || !strings.HasPrefix(address, "http://127.0.0.1:") || len(token) < 26 {
			t.Fatalf("the address: %q", page)
		}
		name, text, _ := strings.Cut(<-opened, "\n")
		if !strings.Contains(text, page) {
			t.Errorf("the file that opens the page does not: %s", text)
		}
		do := func(method, path, token, body string) (int, string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), method, address+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Tapestore-Inspector", "break")
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return response.StatusCode, string(data)
		}
		if status, body := do("GET", "/", "", ""); status != 200 || !strings.Contains(body, "Tapestore inspector") {
			t.Errorf("the page: status %d", status)
		}
		for _, wrong := range []string{"", token[1:], token + "x", strings.ToLower(token)} {
			if status, body := do("GET", "/api/runs", wrong, ""); status != 401 || strings.Contains(body, "payout") {
				t.Errorf("the token %q: status %d: %s", wrong, status, body)
			}
		}
		if status, body := do("GET", "/api/run?run=payout-17", token, ""); status != 200 || !strings.Contains(body, `"owner":"agent"`) {
			t.Errorf("the run: status %d: %s", status, body)
		}
		status, body := do("POST", "/api/break", token, `{"run":"payout-17","token":"1","operator":"ada","reason":"it loops"}`)
		if want := map[bool]int{false: 403, true: 200}[allowed]; status != want {
			t.Errorf("a break with --allow-break=%v: status %d, want %d: %s", allowed, status, want, body)
		}
		head, err := store.GetRun(t.Context(), "payout-17")
		if err != nil || head.Token != map[bool]runstore.Token{false: 1, true: 2}[allowed] {
			t.Errorf("after a break with --allow-break=%v: token %v, %v", allowed, head.Token, err)
		}
		stop() // also while keep-alive connections are open
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			t.Errorf("the file that opens the page is left: %v", err)
		}
	}
}

// A request that waits for a change does not delay the end of the command.
func TestUIEndsAtOnce(t *testing.T) {
	t.Parallel()
	url := "memory:ui-ends"
	store := openNew(t, url)
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	page, stop := startUI(t, uiConfig{url: url})
	address, token, _ := strings.Cut(page, "/#token=")
	get := func(query string) ([]byte, error) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", address+"/api/run?run=r"+query, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		return io.ReadAll(response.Body)
	}
	state, err := get("")
	if err != nil {
		t.Fatal(err)
	}
	_, tag, _ := bytes.Cut(state, []byte(`"tag":"`))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = get("&wait=30&seen=" + strings.TrimRight(string(tag), "\"}\n")) // cut by the end
	}()
	stop()
	<-ended
}

// What the command refuses, and that it creates no store.
func TestUIRefused(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.db")
	for _, c := range []struct{ args, says string }{
		{"--store memory: --listen 0.0.0.0:8080", "is not a loopback address"},
		{"--store memory: --listen :8080", "is not a loopback address"},
		{"--store memory: --listen example.com:80", "is not a loopback address"},
		{"--store memory: --listen [::]:80", "is not a loopback address"},
		{"--store memory: --listen 70000", "neither a port nor host:port"},
		{"--store memory: --listen 127.0.0.1:port", "--listen"},
		{"--store memory: --listen x", "neither a port nor host:port"},
		{"--store " + missing + " --listen 0", "none.db"},
		{"--store " + missing + " --listen 0 --allow-break", "none.db"},
		{"--store nothing", "--store"},
		{"argument", "takes no arguments"},
	} {
		out, _, err := here(t, "", append([]string{"ui"}, strings.Fields(c.args)...)...)
		if err == nil || out != "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", c.args, out, err, c.says)
		}
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("a store was created: %v", err)
	}
}
