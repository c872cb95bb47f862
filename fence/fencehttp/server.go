package fencehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/internal/wire"
	"github.com/tapestore/tapestore/runstore"
)

// Options configures the middleware. The zero Options refuse every request without a fence.
type Options struct {
	// Unfenced reports whether a request that presents no fence may pass, for example because it
	// only reads ([Reads]). Nil lets none pass. Each request that passes and writes is a hole in the
	// fence. A request with one of the two headers never passes.
	Unfenced func(*http.Request) bool
	// Resource returns the resource that the request touches, as the service sees it; a fence that
	// names another is refused. Nil relies on what the caller names: a caller that names a resource
	// wrongly is then not fenced. An error refuses the request as malformed, and its text is sent to
	// the client.
	Resource func(*http.Request) (string, error)
	// OnError is called with each error that refuses a request, for a log; nil drops them. The body
	// of a status 503 does not contain the error of the database.
	OnError func(*http.Request, error)
}

// Reads reports whether the method of a request only reads, for Options.Unfenced.
func Reads(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	default:
		return false
	}
}

// Refusal is the JSON body of a refused request. Tokens are below 2^53, so JavaScript reads them
// exactly.
type Refusal struct {
	// Error is the machine-readable reason, see the package comment.
	Error string `json:"error"`
	// Message is for people.
	Message string `json:"message"`
	// Resource, Presented and Current are set for a stale token.
	Resource  string         `json:"resource,omitempty"`
	Presented runstore.Token `json:"presented,omitempty"`
	Current   runstore.Token `json:"current,omitempty"`
}

// Middleware returns a handler that checks the fence of each request and runs next if the check
// succeeds; nil options mean the zero Options. The request's context then carries the fence
// ([fence.FromContext]), so that next can present it once more with its write: a check here is not
// atomic with what next does.
func Middleware(checker fence.Checker, next http.Handler, opts *Options) http.Handler {
	m := &middleware{checker: checker, next: next}
	if opts != nil {
		m.opts = *opts
	}
	return m
}

// AnnounceHandler returns a handler that checks the fence of a request and does nothing else, with
// status 204. A new holder calls it before it acts, and the service refuses the former holder from
// then on. Of the options it ignores Unfenced.
func AnnounceHandler(checker fence.Checker, opts *Options) http.Handler {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Unfenced = nil
	return Middleware(checker, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}), &o)
}

type middleware struct {
	checker fence.Checker
	next    http.Handler
	opts    Options
}

// ServeHTTP implements http.Handler.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := parse(r.Header)
	if errors.Is(err, wire.ErrMissing) && m.opts.Unfenced != nil && m.opts.Unfenced(r) {
		m.next.ServeHTTP(w, r)
		return
	}
	if err == nil && m.opts.Resource != nil {
		err = m.match(r, p)
	}
	if err == nil {
		err = m.checker.Check(r.Context(), p.Resource, p.Token)
	}
	if err != nil {
		m.refuse(w, r, p, err)
		return
	}
	m.next.ServeHTTP(w, r.WithContext(fence.NewContext(r.Context(), p)))
}

// match refuses a fence of another resource than the one that the request touches.
func (m *middleware) match(r *http.Request, p fence.Presented) error {
	touched, err := m.opts.Resource(r)
	if err != nil {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "request", Problem: err.Error()}
	}
	return wire.Match(p, touched)
}

// refuse writes the response to a request that is not run. A refusal of a stale token states p as
// the client presented it, which the checker may name otherwise: the client compares.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, p fence.Presented, err error) {
	if m.opts.OnError != nil {
		m.opts.OnError(r, err)
	}
	var fenced *runstore.FencedError
	var full *fence.FullError
	status, body := http.StatusServiceUnavailable, Refusal{Error: "fence_unavailable", Message: "the fence could not be checked"}
	switch {
	case errors.Is(err, wire.ErrMissing):
		status, body = http.StatusBadRequest, Refusal{Error: "fence_missing", Message: err.Error()}
	case errors.As(err, &fenced):
		status, body = http.StatusPreconditionFailed, Refusal{
			Error: "fenced", Message: err.Error(),
			Resource: p.Resource, Presented: p.Token, Current: fenced.Current,
		}
		_ = SetHeaders(w.Header(), p.Resource, p.Token) // it has passed Validate
		w.Header().Set(CurrentHeader, strconv.FormatInt(int64(fenced.Current), 10))
	case errors.Is(err, runstore.ErrInvalid), errors.Is(err, runstore.ErrTooLarge):
		status, body = http.StatusBadRequest, Refusal{Error: "fence_malformed", Message: err.Error()}
	case errors.As(err, &full):
		body = Refusal{Error: "fence_full", Message: full.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone away does not read it
}
