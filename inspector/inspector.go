package inspector

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The defaults and limits of [Options].
const (
	// DefaultTimeout, 10 s, is longer than a page of any read takes on an engine that answers.
	DefaultTimeout = 10 * time.Second
	// DefaultMaxRequests, 16, bounds the memory: a request holds up to two pages of a read, about
	// 10 MiB, at a time.
	DefaultMaxRequests = 16
	// DefaultMaxWatches, 64, is how many pages may follow a run or the feed at a time. Beyond it pages
	// read at an interval.
	DefaultMaxWatches = 64
)

// Options configures a handler. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// Authorize decides what a request to the API may do. By default every request may read and none
	// may break a lease, which suits a handler on a loopback address only. It must return soon, although
	// it may wait for some seconds for the turn of a caller that makes many requests, and must not read the
	// request's body. Errors: [ErrUnauthenticated], [ErrForbidden], [ErrTooMany]; any other error is logged
	// and refuses the request.
	Authorize func(*http.Request) (Access, error)
	// AllowHost reports whether a host, without a port, is a name of this server. By default the names
	// of the loopback interface are: localhost, 127.0.0.0/8 and ::1.
	AllowHost func(host string) bool
	// Timeout bounds the reads of a request. Default 10 s.
	Timeout time.Duration
	// MaxRequests and MaxWatches bound how many requests read the store, and how many wait for a
	// change, at a time. Defaults 16 and 64. Further requests are refused with 503. Neither counts the
	// requests that break a lease: of those 4 run at a time.
	MaxRequests, MaxWatches int
	// Logger receives failed reads, and each lease that is broken, with the operator and the reason.
	// Default slog.Default().
	Logger *slog.Logger
}

// inspector serves the API over a store.
type inspector struct {
	store       runstore.RunStore
	opts        Options
	crossOrigin *http.CrossOriginProtection
	requests    chan struct{} // a slot for each request that reads
	watches     chan struct{} // a slot for each request that waits
	breaks      chan struct{} // a slot for each request that breaks a lease
}

// New returns the handler of the page and its API, for mounting at a path that ends with a slash
// (http.StripPrefix). The caller closes the store after the last request has ended.
func New(store runstore.RunStore, opts *Options) http.Handler {
	in := &inspector{store: store, crossOrigin: http.NewCrossOriginProtection()}
	if opts != nil {
		in.opts = *opts
	}
	if in.opts.Authorize == nil {
		in.opts.Authorize = func(*http.Request) (Access, error) { return Access{Permission: Read}, nil }
	}
	if in.opts.AllowHost == nil {
		in.opts.AllowHost = loopbackHost
	}
	in.opts.Timeout = cmp.Or(in.opts.Timeout, DefaultTimeout)
	in.opts.Logger = cmp.Or(in.opts.Logger, slog.Default())
	in.requests = make(chan struct{}, cmp.Or(in.opts.MaxRequests, DefaultMaxRequests))
	in.watches = make(chan struct{}, cmp.Or(in.opts.MaxWatches, DefaultMaxWatches))
	in.breaks = make(chan struct{}, maxBreaks)

	mux := http.NewServeMux()
	read := func(name string, answer func(context.Context, params) (any, error)) {
		mux.Handle("GET /api/"+name, in.authorize(in.answer(answer, false)))
	}
	follow := func(name string, answer func(context.Context, params) (any, error)) {
		mux.Handle("GET /api/"+name, in.authorize(in.answer(answer, true)))
	}
	read("about", in.about)
	read("runs", in.runs)
	follow("run", in.run)
	read("summary", in.summary)
	read("timeline", in.timeline)
	read("records", in.records)
	read("terms", in.terms)
	read("queues", in.queues)
	read("queue", in.queue)
	follow("feed", in.feed)
	read("group", in.group)
	mux.Handle("GET /api/value", in.authorize(http.HandlerFunc(in.value)))
	mux.Handle("POST /api/break", in.authorize(http.HandlerFunc(in.breakLease)))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		in.refuse(w, r, &apiError{Status: http.StatusNotFound, Kind: "not found", Message: "the API has no such request"})
	})
	mux.Handle("/", pageHandler())
	return in.guard(mux)
}

// answer serves a read: it takes a slot, bounds the time and writes the result as JSON. A read that
// waits for a change takes a slot of those that wait, and one of those that read each time it reads.
func (in *inspector) answer(read func(context.Context, params) (any, error), waits bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := params{Values: r.URL.Query()}
		wait, err := p.wait()
		if err == nil && wait > 0 && !waits {
			err = badRequest("wait", "this list cannot be waited for")
		}
		if err != nil {
			in.refuse(w, r, err)
			return
		}
		slots := in.requests
		if wait > 0 {
			slots = in.watches
		}
		release, err := take(slots)
		if err != nil {
			w.Header().Set("Retry-After", "5")
			in.refuse(w, r, err)
			return
		}
		defer release()
		ctx, cancel := context.WithTimeout(r.Context(), in.opts.Timeout+wait)
		defer cancel()
		result, err := read(ctx, p)
		if err != nil {
			in.refuse(w, r, err)
			return
		}
		in.write(w, r, result)
	})
}

// take takes a slot, or refuses the request.
func take(slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, &apiError{Status: http.StatusServiceUnavailable, Kind: "busy", Message: "the server answers too many requests at this moment; repeat this one"}
	}
}

// write writes a result as JSON.
func (in *inspector) write(w http.ResponseWriter, r *http.Request, result any) {
	body, err := json.Marshal(result)
	if err != nil {
		in.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may be gone
}

// about describes the store and what the caller may do.
func (in *inspector) about(ctx context.Context, _ params) (any, error) {
	access := accessOf(ctx)
	result := struct {
		Engine   string    `json:"engine,omitempty"`
		Version  string    `json:"version,omitempty"`
		Tier     string    `json:"tier,omitempty"`
		Now      time.Time `json:"now"`
		Break    bool      `json:"break"`
		Operator string    `json:"operator,omitempty"`
	}{Break: access.Permission >= Break, Operator: access.Operator}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	result.Now = now
	if describer, ok := runstore.As[runstore.Describer](in.store); ok {
		if d, err := describer.Describe(ctx); err == nil { // only a title
			version, _, _ := strings.Cut(shown(d.Version), "\\n")
			result.Engine, result.Version, result.Tier = shown(d.Engine), version, shown(d.Tier)
		}
	}
	return result, nil
}
