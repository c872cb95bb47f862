package command

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
)

// heldGrants is a store whose grants wait for the test.
type heldGrants struct {
	runstore.RunStore
	called chan struct{}
	result chan error // what a grant waits for; nil lets it through
}

func (s heldGrants) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	s.called <- struct{}{}
	if err := <-s.result; err != nil {
		return runstore.Granted{}, err
	}
	return s.RunStore.AcquireLease(ctx, req)
}

// lines is a log whose lines a test receives.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// await returns the first line with the text.
func (l lines) await(text string) string {
	for line := range l {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// A break of a lease that a shutdown meets is finished if the time suffices, and its client is answered.
// Otherwise the client gets no answer: the outcome is unknown to it, the log has it, and a repeat of the
// request finds out and breaks no other grant.
func TestABreakDuringAShutdown(t *testing.T) {
	t.Parallel()
	closed := &runstore.OpError{Op: "acquire lease", Run: "run", Err: runstore.ErrClosed} // the end of a shutdown closes the store
	for _, c := range []struct {
		name   string
		cut    bool
		result error // of the grant that was in flight
		status int   // 0 for no answer
		log    string
		repeat int
	}{
		{"finished", false, nil, http.StatusOK, "a lease was broken", http.StatusConflict},
		{"refused", false, closed, http.StatusServiceUnavailable, `a lease was not broken" run=run token=1 operator=boss reason=stuck outcome="not applied" error=`, http.StatusOK},
		{"cut and applied", true, nil, 0, "a lease was broken", http.StatusConflict},
		{"cut and not applied", true, closed, 0, `a lease was not broken" run=run token=1 operator=boss reason=stuck outcome="not applied" error=`, http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			engine := memory.New(nil).Open()
			defer func() { _ = engine.Close() }()
			if _, err := engine.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Fatal(err)
			}
			granted, err := engine.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: runstore.MaxTTL}})
			if err != nil {
				t.Fatal(err)
			}
			log := make(lines, 100)
			security := principalsFile(t)
			serveOn := func(store runstore.RunStore) (string, func(context.Context)) {
				opts := tapeserver.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
				if err := security.secure(t.Context(), &opts); err != nil {
					t.Fatal(err)
				}
				lis, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				return lis.Addr().String(), serveUI(lis, newHTTPConns(opts.Logger).inspector, store, opts)
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			breakIt := func(address string) (int, error) {
				body := `{"run":"run","token":"` + strconv.FormatInt(int64(granted.Lease.Token), 10) + `","operator":"boss","reason":"stuck"}`
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/api/break", strings.NewReader(body))
				if err != nil {
					return 0, err
				}
				req.Header.Set("Authorization", "Bearer boss-boss-boss-boss-boss")
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-Tapestore-Inspector", "break")
				res, err := client.Do(req)
				if err != nil {
					return 0, err
				}
				return res.StatusCode, res.Body.Close()
			}

			store := heldGrants{engine, make(chan struct{}), make(chan error)}
			address, stop := serveOn(store)
			type answer struct {
				status int
				err    error
			}
			answers := make(chan answer, 1)
			go func() {
				status, err := breakIt(address)
				answers <- answer{status, err}
			}()
			<-store.called
			stopped := make(chan struct{})
			overdue, end := context.WithCancel(t.Context())
			defer end()
			go func() { defer close(stopped); stop(overdue) }()
			if c.cut {
				end()
				<-stopped
				if a := <-answers; a.err == nil {
					t.Errorf("the client was answered %d before the outcome was known", a.status)
				}
				store.result <- c.result
			} else {
				store.result <- c.result
				if a := <-answers; a.err != nil || a.status != c.status {
					t.Errorf("the client was answered %d, %v, want %d", a.status, a.err, c.status)
				}
				<-stopped
			}
			if line := log.await("a lease was"); !strings.Contains(line, c.log) {
				t.Errorf("the log is %q, want %q", line, c.log)
			}
			run, err := engine.GetRun(t.Context(), "run")
			if applied := run.Token != granted.Lease.Token; err != nil || applied != (c.result == nil) {
				t.Errorf("the lease was broken: %v, %v", applied, err)
			}

			address, stop = serveOn(engine) // the server is started again
			defer func() { stop(context.WithoutCancel(t.Context())) }()
			if status, err := breakIt(address); err != nil || status != c.repeat {
				t.Errorf("a repeat is answered %d, %v, want %d", status, err, c.repeat)
			}
		})
	}
}
