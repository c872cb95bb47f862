package inspector

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// hooked is a store whose calls a test replaces.
type hooked struct {
	runstore.RunStore
	acquire func(next func() (runstore.Granted, error)) (runstore.Granted, error)
	commit  func(next func() (runstore.Committed, error)) (runstore.Committed, error)
	feed    func()
}

func (s *hooked) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	next := func() (runstore.Granted, error) { return s.RunStore.AcquireLease(ctx, r) }
	if s.acquire == nil {
		return next()
	}
	return s.acquire(next)
}

func (s *hooked) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	next := func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) }
	if s.commit == nil {
		return next()
	}
	return s.commit(next)
}

func (s *hooked) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if s.feed != nil {
		s.feed()
	}
	return s.RunStore.ReadFeed(ctx, q)
}

// through has the handler read and write through s.
func (b *bench) through(s *hooked, opts *Options) {
	s.RunStore = b.store
	opts.Authorize = func(*http.Request) (Access, error) { return Access{Permission: Break}, nil }
	opts.Logger = slog.New(slog.NewTextHandler(b.log, nil))
	b.handler = New(s, opts)
}

// breakLease sends a request to break the lease of the run "r".
func (b *bench) breakLease(token string) *httptest.ResponseRecorder {
	r := request("POST", "/api/break", strings.NewReader(`{"run":"r","token":"`+token+`","operator":"ada","reason":"it loops"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Tapestore-Inspector", "break")
	return b.do(r)
}

// A break that has ended the grant, but cannot complete a step over two runs of its holder, names the token
// to break next. The break of that token completes the step.
func TestBreakThatCannotCompleteAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		held := b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}})
		b.create(runstore.RunSpec{ID: "other"})
		away := func() (runstore.Committed, error) {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnavailable}
		}
		writes := 0
		dying := &hooked{RunStore: b.store, commit: func(next func() (runstore.Committed, error)) (runstore.Committed, error) {
			if writes++; writes > 2 { // the intent and the other run's part are written
				return away()
			}
			return next()
		}}
		lead, other := runstore.NewBatch("r", held.Fence()), runstore.NewBatch("other", runstore.AtSeq(1))
		lead.Append("step", nil)
		other.Append("step", nil)
		if _, err := crossrun.Commit(t.Context(), dying, lead, other); err == nil {
			t.Fatal("the step was completed")
		}

		s := &hooked{commit: func(func() (runstore.Committed, error)) (runstore.Committed, error) { return away() }}
		b.through(s, &Options{})
		w := b.breakLease("1")
		if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), `"kind":"incomplete"`) || !strings.Contains(w.Body.String(), `"token":2`) ||
			!strings.Contains(w.Body.String(), "break the lease of token 2") {
			t.Errorf("status %d: %s; want the kind incomplete and token 2", w.Code, w.Body)
		}
		if log := b.log.String(); !strings.Contains(log, "a lease was broken") || strings.Contains(log, "not broken") ||
			!strings.Contains(log, "new_token=2") || !strings.Contains(log, "operator=ada") || !strings.Contains(log, "error=") {
			t.Errorf("the log: %s", log)
		}
		s.commit = nil
		if w := b.breakLease("2"); w.Code != http.StatusOK {
			t.Errorf("the next break: status %d: %s", w.Code, w.Body)
		}
		if inProgress, err := b.store.ReadRecords(t.Context(), "r", runstore.RecordQuery{Keys: []runstore.RecordKey{crossrun.IntentKey}}); err != nil || len(inProgress) != 0 {
			t.Errorf("records %v, %v; want no step in progress", inProgress, err)
		}
	})
}

// A break whose reply is lost for as long as it may last says that its outcome is unknown.
func TestBreakOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}})
		b.through(&hooked{acquire: func(next func() (runstore.Granted, error)) (runstore.Granted, error) {
			_, _ = next() // applied, the reply is lost
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: "r", Err: runstore.ErrUnknownOutcome}
		}}, &Options{})
		w := b.breakLease("1")
		if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), `"kind":"unknown"`) || strings.Contains(w.Body.String(), "Nothing was changed") {
			t.Errorf("status %d: %s; want the kind unknown", w.Code, w.Body)
		}
		if log := b.log.String(); !strings.Contains(log, "a lease was not broken") || !strings.Contains(log, "outcome=unknown") {
			t.Errorf("the log: %s", log)
		}
	})
}

// Reads that take every slot leave a break its own. Breaks are bounded, too.
func TestBreakWhileReadsTakeEverySlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		s := &hooked{feed: func() { <-ctx.Done() }}
		b.through(s, &Options{MaxRequests: 1})
		answers := make(chan int, maxBreaks+1)
		go func() { // a page that follows the feed
			status, _ := b.get("feed", "after", "0", "wait", "1")
			answers <- status
		}()
		synctest.Wait()
		if status, body := b.get("about"); status != http.StatusServiceUnavailable {
			t.Fatalf("a read: status %d: %s; want no slot left", status, body)
		}
		if w := b.breakLease("1"); w.Code != http.StatusOK {
			t.Fatalf("a break: status %d: %s", w.Code, w.Body)
		}

		s.acquire = func(next func() (runstore.Granted, error)) (runstore.Granted, error) {
			<-ctx.Done()
			return next()
		}
		if _, err := b.store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: runstore.LeaseSpec{Owner: "agent", TTL: time.Minute}}); err != nil {
			t.Fatal(err)
		}
		for range maxBreaks {
			go func() { answers <- b.breakLease("3").Code }()
		}
		synctest.Wait()
		if w := b.breakLease("3"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"kind":"busy"`) {
			t.Errorf("one break too many: status %d: %s", w.Code, w.Body)
		}
		end()
		codes := map[int]int{}
		for range maxBreaks + 1 {
			codes[<-answers]++
		}
		if codes[http.StatusOK] != 2 || codes[http.StatusConflict] != maxBreaks-1 {
			t.Errorf("statuses %v, want that of the feed and of one break to be 200", codes)
		}
	})
}
