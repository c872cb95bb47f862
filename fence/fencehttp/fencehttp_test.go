package fencehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencehttp"
	"github.com/tapestore/tapestore/runstore"
)

// broken is a checker whose every check fails with err.
type broken struct{ err error }

func (b broken) Check(context.Context, string, runstore.Token) error { return b.err }

// serve runs one request and returns the response. ran reports whether the handler ran.
func serve(checker fence.Checker, opts *fencehttp.Options, r *http.Request) (resp *http.Response, ran bool) {
	w := httptest.NewRecorder()
	fencehttp.Middleware(checker, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }), opts).ServeHTTP(w, r)
	return w.Result(), ran
}

func request(method string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "/accounts/7", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// Every error of a fence has its status and its reason, and keeps the handler from running.
func TestRefusals(t *testing.T) {
	t.Parallel()
	full, err := fence.NewMemory(&fence.MemoryOptions{MaxResources: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Check(t.Context(), "a", 5); err != nil {
		t.Fatal(err)
	}
	const token, resource = fencehttp.TokenHeader, fencehttp.ResourceHeader
	byPath := &fencehttp.Options{Resource: func(r *http.Request) (string, error) { return r.URL.Path[1:], nil }}
	noPath := &fencehttp.Options{Resource: func(*http.Request) (string, error) { return "", errors.New("no such account") }}
	reads := &fencehttp.Options{Unfenced: fencehttp.Reads}
	for _, test := range []struct {
		name    string
		checker fence.Checker
		opts    *fencehttp.Options
		request *http.Request
		status  int
		reason  string
		message string
	}{
		{"stale", full, nil, request("POST", token, "4", resource, "a"), 412, "fenced", "has seen token 5"},
		{"stale, of another checker", broken{&runstore.FencedError{Presented: 4, Current: 5}}, nil, request("POST", token, "4", resource, "a"), 412, "fenced", "fenced"},
		{"missing", full, nil, request("POST"), 400, "fence_missing", token},
		{"missing on a write", full, reads, request("POST"), 400, "fence_missing", token},
		{"half on a read", full, reads, request("GET", token, "5"), 400, "fence_malformed", resource},
		{"no token", full, nil, request("POST", resource, "a"), 400, "fence_malformed", token},
		{"two tokens", full, nil, request("POST", token, "5", token, "6", resource, "a"), 400, "fence_malformed", "2 times"},
		{"empty token", full, nil, request("POST", token, "", resource, "a"), 400, "fence_malformed", "decimal"},
		{"token of an epoch", full, nil, request("POST", token, "1.5", resource, "a"), 400, "fence_malformed", "decimal"},
		{"token zero", full, nil, request("POST", token, "0", resource, "a"), 400, "fence_malformed", "out of range"},
		{"token beyond all", full, nil, request("POST", token, "9007199254740992", resource, "a"), 400, "fence_malformed", "out of range"},
		{"encoding", full, nil, request("POST", token, "5", resource, "a%2"), 400, "fence_malformed", "percent"},
		{"long resource", full, nil, request("POST", token, "5", resource, strings.Repeat("a", fence.MaxResource+1)), 400, "fence_malformed", "limit"},
		{"another resource", full, byPath, request("POST", token, "5", resource, "a"), 400, "fence_malformed", "touches"},
		{"no resource", full, noPath, request("POST", token, "5", resource, "a"), 400, "fence_malformed", "no such account"},
		{"full", full, nil, request("POST", token, "5", resource, "b"), 503, "fence_full", "limit is 1"},
		{"unknown", broken{runstore.ErrUnknownOutcome}, nil, request("POST", token, "5", resource, "a"), 503, "fence_unavailable", "could not be checked"},
		{"unclassified", broken{errors.New("password is hunter2")}, nil, request("POST", token, "5", resource, "a"), 503, "fence_unavailable", "could not be checked"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var reported error
			var opts fencehttp.Options
			if test.opts != nil {
				opts = *test.opts
			}
			opts.OnError = func(_ *http.Request, err error) { reported = err }
			resp, ran := serve(test.checker, &opts, test.request)
			var body fencehttp.Refusal
			if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if ran || resp.StatusCode != test.status || body.Error != test.reason || !strings.Contains(body.Message, test.message) || reported == nil {
				t.Errorf("ran %v, status %d, %+v, reported %v; want %d, %s with %q", ran, resp.StatusCode, body, reported, test.status, test.reason, test.message)
			}
			if strings.Contains(body.Message, "hunter2") || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%+v as %s", body, resp.Header.Get("Content-Type"))
			}
			stale := body.Error == "fenced"
			if stale != (body.Current == 5 && body.Presented == 4 && resp.Header.Get(fencehttp.CurrentHeader) == "5") {
				t.Errorf("%+v, current %q", body, resp.Header.Get(fencehttp.CurrentHeader))
			}
		})
	}
}

func TestPasses(t *testing.T) {
	t.Parallel()
	checker := newMemory(t)
	byPath := &fencehttp.Options{Resource: func(r *http.Request) (string, error) { return r.URL.Path[1:], nil }}
	reads := &fencehttp.Options{Unfenced: fencehttp.Reads}
	const token, resource = fencehttp.TokenHeader, fencehttp.ResourceHeader
	for name, test := range map[string]struct {
		opts    *fencehttp.Options
		request *http.Request
	}{
		"fenced":           {nil, request("POST", token, "5", resource, "a")},
		"resource by path": {byPath, request("POST", token, "5", resource, "accounts/7")},
		"GET":              {reads, request("GET")},
		"HEAD":             {reads, request("HEAD")},
		"OPTIONS":          {reads, request("OPTIONS")},
		"fenced GET":       {reads, request("GET", token, "5", resource, "a")},
	} {
		if resp, ran := serve(checker, test.opts, test.request); !ran || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: ran %v, status %d", name, ran, resp.StatusCode)
		}
	}
}

// The handler finds the fence in its context, and none if the request passed without.
func TestHandlerSeesTheFence(t *testing.T) {
	t.Parallel()
	resource := "caf\u00e9 100%/7"
	var got fence.Presented
	var fenced bool
	url := start(t, fencehttp.Middleware(newMemory(t), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, fenced = fence.FromContext(r.Context())
	}), &fencehttp.Options{Unfenced: func(*http.Request) bool { return true }}))
	for _, want := range []fence.Presented{{Resource: resource, Token: fence.MaxToken}, {}} {
		resp, err := post(t.Context(), url, want.Resource, want.Token)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got != want || fenced != (want.Resource != "") {
			t.Errorf("got %+v, %v; want %+v", got, fenced, want)
		}
	}
}

// An announcement needs a fence even if the options let every request pass.
func TestAnnounceHandlerNeedsAFence(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	opts := &fencehttp.Options{Unfenced: func(*http.Request) bool { return true }}
	fencehttp.AnnounceHandler(newMemory(t), opts).ServeHTTP(w, request("POST"))
	if w.Code != http.StatusBadRequest {
		t.Errorf("status %d, want 400", w.Code)
	}
}

func TestSetHeaders(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	if err := errors.Join(fencehttp.SetHeaders(h, "a", 5), fencehttp.SetHeaders(h, "b c", 1<<40+1)); err != nil {
		t.Fatal(err)
	}
	if h.Get("Fencing-Token") != "1099511627777" || h.Get("Fencing-Resource") != "b%20c" || len(h.Values("Fencing-Token")) != 1 {
		t.Errorf("got %v", h)
	}
	if err := fencehttp.SetHeaders(h, "d", 0); !errors.Is(err, runstore.ErrInvalid) || h.Get("Fencing-Resource") != "b%20c" {
		t.Errorf("got %v and %v, want ErrInvalid and no change", err, h)
	}
}

// Only the middleware's own refusal is one.
func TestRefused(t *testing.T) {
	t.Parallel()
	current := http.Header{fencehttp.CurrentHeader: {"7"}}
	for name, resp := range map[string]*http.Response{
		"OK":                   {StatusCode: 200},
		"the service's 412":    {StatusCode: 412, Header: http.Header{}},
		"another status":       {StatusCode: 400, Header: current},
		"a server's own error": {StatusCode: 503, Header: http.Header{}},
	} {
		if err := fencehttp.Refused(resp); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Without the request, or with an unreadable token, the refusal is one all the same.
	for _, header := range []http.Header{current, {fencehttp.CurrentHeader: {"?"}}} {
		if err := fencehttp.Refused(&http.Response{StatusCode: 412, Header: header}); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("%v: got %v, want ErrFenced", header, err)
		}
	}
}
