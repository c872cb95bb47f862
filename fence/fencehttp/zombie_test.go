package fencehttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencehttp"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func newMemory(t testing.TB) *fence.Memory {
	t.Helper()
	m, err := fence.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func start(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// post sends a request under a token; without a resource it presents no fence.
func post(ctx context.Context, url, resource string, token runstore.Token) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	if resource != "" {
		if err := fencehttp.SetHeaders(req.Header, resource, token); err != nil {
			return nil, err
		}
	}
	return http.DefaultClient.Do(req)
}

// A holder is paused, its lease expires, and another takes over and calls the service. The late
// call of the former holder is refused.
func TestZombie(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine := memory.New(nil)
	store := engine.Open()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: 30 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var paid []runstore.Token
	checker := newMemory(t)
	mux := http.NewServeMux()
	mux.Handle("/fence", fencehttp.AnnounceHandler(checker, nil))
	mux.Handle("/pay", fencehttp.Middleware(checker, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, _ := fence.FromContext(r.Context())
		mu.Lock()
		defer mu.Unlock()
		paid = append(paid, p.Token)
	}), nil))
	url := start(t, mux)
	call := func(path string, token runstore.Token, status int) error {
		t.Helper()
		resp, err := post(ctx, url+path, "payout-17", token)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s under token %v: status %d, want %d", path, token, resp.StatusCode, status)
		}
		return fencehttp.Refused(resp)
	}

	a := created.Lease
	if err := call("/pay", a.Token, http.StatusOK); err != nil {
		t.Fatal(err)
	}
	engine.Advance(31 * time.Second) // agent-a is paused
	granted, err := store.AcquireLease(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := granted.Lease
	if err := call("/fence", b.Token, http.StatusNoContent); err != nil {
		t.Fatal(err)
	}

	var stale *fence.StaleError
	err = call("/pay", a.Token, http.StatusPreconditionFailed) // agent-a wakes
	if !errors.Is(err, runstore.ErrFenced) || !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "payout-17", Presented: a.Token, Current: b.Token}) {
		t.Errorf("late call: got %v, want that it is fenced by %v", err, b.Token)
	}
	if err := call("/fence", a.Token, http.StatusPreconditionFailed); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("late announcement: got %v", err)
	}
	if err := call("/pay", b.Token, http.StatusOK); err != nil {
		t.Error(err)
	}
	if want := []runstore.Token{a.Token, b.Token}; !slices.Equal(paid, want) {
		t.Errorf("paid under %v, want %v", paid, want)
	}
}
