package adapter_test

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// engine is a core that remembers how it was called and returns what the test chose.
type engine struct {
	adapter.Core // nil: the methods that a test does not call
	calls        int
	operation    string
	grant        runstore.GrantID
	err          error
	block        chan struct{} // if not nil, GetRun waits for it
	closed       chan struct{} // closed when Close was called
}

func (e *engine) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	e.calls++
	e.operation = adapter.Operation(ctx)
	if e.block != nil {
		<-e.block
	}
	return runstore.Run{ID: id}, e.err
}

func (e *engine) CreateRun(_ context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	e.grant = spec.Lease.Grant
	return runstore.Created{New: true}, e.err
}

func (e *engine) AcquireLease(_ context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	e.grant = req.Grant
	return runstore.Granted{Ended: true}, e.err
}

func (e *engine) RenewLease(context.Context, runstore.RenewRequest) (runstore.Renewed, error) {
	return runstore.Renewed{}, e.err
}

func (e *engine) ReleaseLease(context.Context, runstore.ReleaseRequest) (runstore.Committed, error) {
	return runstore.Committed{}, e.err
}

func (e *engine) Commit(context.Context, runstore.Batch) (runstore.Committed, error) {
	return runstore.Committed{LastSeq: 7}, e.err
}

func (e *engine) Now(context.Context) (time.Time, error) {
	return time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("", 3600)), nil
}

func (e *engine) Close(idle <-chan struct{}) error {
	close(e.closed)
	<-idle
	return io.ErrClosedPipe
}

func open(opts adapter.Options) (*engine, *adapter.Store) {
	e := &engine{closed: make(chan struct{})}
	return e, adapter.New(e, opts)
}

func TestInputIsCheckedFirst(t *testing.T) {
	t.Parallel()
	e, s := open(adapter.Options{})
	_ = s.Close() // even on a closed handle, and after the context's end
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.GetRun(ctx, ""); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "get run") {
		t.Errorf("an empty run id: %v, want ErrInvalid of get run", err)
	}
	if e.calls != 0 {
		t.Error("the engine was asked with input that is refused")
	}
}

func TestClosedAndEnded(t *testing.T) {
	t.Parallel()
	e, s := open(adapter.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.GetRun(ctx, "run"); !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v, want ErrUnavailable and the context's error", err)
	}
	for range 2 {
		if err := s.Close(); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Close returned %v, want the engine's error each time", err)
		}
	}
	if _, err := s.GetRun(ctx, "run"); !errors.Is(err, runstore.ErrClosed) {
		t.Errorf("on a closed handle: %v, want ErrClosed", err)
	}
	if e.calls != 0 {
		t.Error("the engine was asked")
	}
}

func TestCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s := open(adapter.Options{})
		e.block = make(chan struct{})
		read := make(chan error, 1)
		go func() {
			_, err := s.GetRun(t.Context(), "run")
			read <- err
		}()
		synctest.Wait()
		ended := make(chan struct{})
		go func() {
			_ = s.Close()
			close(ended)
		}()
		<-e.closed // Close has begun
		synctest.Wait()
		select {
		case <-ended:
			t.Error("Close returned while an operation was in flight")
		default:
		}
		if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrClosed) {
			t.Errorf("an operation after Close has begun: %v, want ErrClosed", err)
		}
		close(e.block)
		if err := <-read; err != nil {
			t.Errorf("the operation in flight: %v, want its result", err)
		}
		<-ended
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	classified := &runstore.CorruptError{}
	e, s := open(adapter.Options{Classify: func(id runstore.RunID, err error) error {
		if id != "run" {
			t.Errorf("Classify was given the run %q", id)
		}
		if errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("Classify was called with %v", err)
		}
		if errors.Is(err, io.ErrNoProgress) {
			return classified
		}
		return err
	}})
	for _, tc := range []struct{ err, want error }{
		{nil, nil}, {runstore.ErrFenced, runstore.ErrFenced}, {io.EOF, runstore.ErrUnknownOutcome}, {io.ErrNoProgress, runstore.ErrCorrupt},
		{outcome.Unknown(io.ErrNoProgress), runstore.ErrUnknownOutcome},
	} {
		e.err = tc.err
		done, err := s.Commit(t.Context(), runstore.NewBatch("run", runstore.Unguarded("test")))
		if kind := runstore.KindOf(err); (err == nil) != (tc.want == nil) || err != nil && kind != tc.want {
			t.Errorf("%v became %v, want kind %v", tc.err, err, tc.want)
		}
		var op *runstore.OpError
		if err != nil && (!errors.As(err, &op) || op.Op != "commit" || op.Run != "run") {
			t.Errorf("%v names neither operation nor run", err)
		}
		if empty := done.LastSeq == 0; empty != (err != nil) {
			t.Errorf("the result %v is beside the error %v", done, err)
		}
	}
}

func TestBefore(t *testing.T) {
	t.Parallel()
	e, s := open(adapter.Options{Before: func(ctx context.Context) error {
		if op := adapter.Operation(ctx); op != "get run" {
			t.Errorf("Before runs in the operation %q", op)
		}
		return runstore.ErrStoreBehind
	}})
	if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrStoreBehind) || e.calls != 0 {
		t.Errorf("got %v after %d calls, want the error of Before and no call", err, e.calls)
	}
}

func TestGrantIDsAreFilledIn(t *testing.T) {
	t.Parallel()
	e, s := open(adapter.Options{})
	lease := runstore.LeaseSpec{Owner: "me", TTL: time.Minute}
	for _, given := range []runstore.GrantID{"", "mine"} {
		lease.Grant = given
		spec := lease
		requests := map[string]func() error{
			"create": func() error {
				_, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &spec})
				return err
			},
			"acquire": func() error {
				_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: lease})
				return err
			},
		}
		for name, request := range requests {
			if err := request(); err != nil {
				t.Fatal(err)
			}
			if e.grant == "" || given != "" && e.grant != given {
				t.Errorf("%s with the grant id %q reached the engine with %q", name, given, e.grant)
			}
		}
		if spec.Grant != given {
			t.Errorf("the caller's lease was changed: its grant id is %q, was %q", spec.Grant, given)
		}
	}
}

func TestWritesWakeWaiters(t *testing.T) {
	t.Parallel()
	e, s := open(adapter.Options{Waiters: wakeup.Of(t)})
	notifier := adapter.NewRunNotifier(s, nil)
	f := runstore.Lease{Run: "run", Owner: "me", Token: 1, Grant: "g"}.Fence()
	for _, tc := range []struct {
		name           string
		write, release bool // what it wakes
		do             func() error
	}{
		{"a read", false, false, func() error { _, err := s.GetRun(t.Context(), "run"); return err }},
		{"a heartbeat", false, false, func() error {
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: f, TTL: time.Minute})
			return err
		}},
		{"a commit", true, false, func() error {
			_, err := s.Commit(t.Context(), runstore.NewBatch("run", f))
			return err
		}},
		{"a release", true, true, func() error {
			_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: f})
			return err
		}},
		{"a commit to another run", false, false, func() error {
			_, err := s.Commit(t.Context(), runstore.NewBatch("other", runstore.Unguarded("test")))
			return err
		}},
	} {
		for err, applied := range map[error]bool{nil: true, runstore.ErrFenced: false, io.EOF: true} { // EOF: unknown
			e.err = err
			ctx, cancel := context.WithCancel(t.Context())
			onWrite, err1 := notifier.RunWakeups(ctx, "run", runstore.OnWrite)
			onRelease, err2 := notifier.RunWakeups(ctx, "run", runstore.OnRelease)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			if got := tc.do(); !errors.Is(got, err) {
				t.Fatal(got)
			}
			if got, want := wakeup.Take(onWrite), tc.write && applied; got != want {
				t.Errorf("%s with the error %v woke a waiter for writes: %t, want %t", tc.name, err, got, want)
			}
			if got, want := wakeup.Take(onRelease), tc.release && applied; got != want {
				t.Errorf("%s with the error %v woke a waiter for the release: %t, want %t", tc.name, err, got, want)
			}
			cancel()
		}
	}
}

func TestNowIsRounded(t *testing.T) {
	t.Parallel()
	_, s := open(adapter.Options{})
	want := time.Date(2026, 1, 2, 2, 4, 5, 6000, time.UTC)
	if now, err := s.Now(t.Context()); err != nil || now != want {
		t.Errorf("got %v, %v, want %v", now, err, want)
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	type position struct {
		At  int64
		Key []byte
	}
	want, got := position{-7, []byte("\xff\x00")}, position{}
	c := adapter.EncodeCursor(want)
	if err := adapter.DecodeCursor(c, &got); err != nil || got.At != want.At || string(got.Key) != string(want.Key) {
		t.Errorf("%v became %v, %v", want, got, err)
	}
	other := adapter.EncodeCursor(struct{ Place int64 }{1}) // of another store
	for _, c := range []runstore.Cursor{"", "%", "e30x", c[1:], other} {
		if err := adapter.DecodeCursor(c, &got); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("cursor %q: %v, want ErrInvalid", c, err)
		}
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limit, size, want int
	}{{3, 1, 3}, {1000, runstore.MaxPageBytes/2 + 1, 2}, {1000, runstore.MaxPageBytes, 2}, {1000, runstore.MaxPageBytes + 1, 1}} {
		n := 1
		for p := adapter.NewPage(tc.limit); !p.Add(tc.size); n++ {
		}
		if n != tc.want {
			t.Errorf("limit %d, entries of %d bytes: the page has %d, want %d", tc.limit, tc.size, n, tc.want)
		}
	}
}

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[runstore.RecordKey]string{"": "", "a": "b", "a\xff": "b", "\xff\xff": "", "a\x00": "a\x01"} {
		if got := adapter.PrefixEnd(prefix); string(got) != want || (got == nil) != (want == "") {
			t.Errorf("after the prefix %q: %q, want %q", prefix, got, want)
		}
	}
}

func TestReadParams(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                             "",
		"name=x&on=no&for=3s&n=12":     "",
		"other=1":                      "knows for, n, name, on",
		"on=maybe":                     `on: "maybe" is neither yes nor no`,
		"for=0s":                       `for: "0s" is no duration such as 10s`,
		"n=0":                          `n: "0" is no number above 0`,
		"n=9999999999999999999":        "is no number above 0",
		"for=x&n=y":                    "for:", // one error at a time, in the order of the keys
		"name=a&name=b":                "is given 2 times",
		"name=x&on=yes&for=-3s&n=-12":  "", // the ranges are the options' own to check
		"name=&on=yes&for=1h30m&n=999": "",
	} {
		params, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var name string
		off, d, n := true, time.Duration(0), 0
		err = adapter.ReadParams(runstore.URL{Scheme: "x", Params: params}, map[string]func(string) error{
			"name": adapter.Text(&name), "on": adapter.YesNo("on", &off, "no"), "for": adapter.Duration("for", &d), "n": adapter.Number("n", &n),
		})
		if want == "" && err != nil || want != "" && (!errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", query, err, want)
		}
		if query == "name=x&on=no&for=3s&n=12" && (name != "x" || !off || d != 3*time.Second || n != 12) {
			t.Errorf("%q: read %q, %t, %v, %d", query, name, off, d, n)
		}
	}
}

func TestSplitAddress(t *testing.T) {
	t.Parallel()
	project, instance, name, err := adapter.SplitAddress(runstore.URL{Scheme: "x", Address: "//p/i/t"}, "table")
	if err != nil || project != "p" || instance != "i" || name != "t" {
		t.Errorf("got %s, %s, %s, %v", project, instance, name, err)
	}
	for _, address := range []string{"", "p/i/t", "//p/i", "//p/i/t/x"} {
		_, _, _, err := adapter.SplitAddress(runstore.URL{Scheme: "x", Address: address}, "table")
		if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "write x://project/instance/table") {
			t.Errorf("%q: %v, want ErrInvalid with the form", address, err)
		}
	}
}
