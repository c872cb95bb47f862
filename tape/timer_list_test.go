package tape_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestEachTimerFiresOnce(t *testing.T) {
	t.Parallel()
	const timers, claimers = 300, 24
	tp, s, _ := newTape(t)
	runs := []tape.BeginRunResult{begin(t, tp, "a"), begin(t, tp, "b")}
	for i := range timers {
		setTimer(t, tp, runs[i%2].ID, fmt.Sprint(i), int64(i))
	}
	var mu sync.Mutex
	fired := map[string]int{}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range claimers {
		wg.Go(func() {
			<-start
			for {
				listed, err := tape.New(s, nil).ListDueTimers(t.Context(), tape.DueTimersQuery{Claim: true, Limit: 10 + 3*i})
				if err != nil {
					t.Errorf("ListDueTimers: %v", err)
				}
				if len(listed) == 0 {
					return
				}
				mu.Lock()
				for _, m := range listed {
					fired[m.ID]++
				}
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	if len(fired) != timers {
		t.Errorf("%d timers fired, want %d", len(fired), timers)
	}
	for id, n := range fired {
		if n != 1 {
			t.Errorf("timer %s fired %d times", id, n)
		}
	}
}

func TestAClaimLeavesOutTimersThatChange(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	for i, id := range []string{"fired", "stays", "cancelled", "moved", "same"} {
		setTimer(t, inner, r.ID, id, int64(i))
	}
	tp := tape.New(behind(s, "scan", 1, func() {
		due(t, inner, tape.DueTimersQuery{Limit: 1, Claim: true})
		setTimer(t, inner, r.ID, "moved", 4_000_000_000_000)
		setTimer(t, inner, r.ID, "same", 4) // as it is: nothing is written
		if _, err := inner.CancelTimer(t.Context(), r.ID, "cancelled", runstore.Fence{}); err != nil {
			t.Error(err)
		}
	}), nil)
	if got := due(t, tp, tape.DueTimersQuery{Claim: true}); got != "[stays same]" {
		t.Errorf("claimed %s, want [stays same]", got)
	}
	if got := due(t, tp, tape.DueTimersQuery{Now: runstore.EndOfTime}); got != "[moved]" {
		t.Errorf("unfired %s, want [moved]", got)
	}
}

func TestTimersSurviveLostReplies(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	r := begin(t, tp, "i")
	for i := range 3 {
		first := setTimer(t, tp, r.ID, fmt.Sprint(i), int64(i))
		if listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{}); err != nil || len(listed) != 1 || listed[0] != first {
			t.Errorf("listed %+v, %v, want %+v", listed, err, first)
		}
		if got, want := due(t, tp, tape.DueTimersQuery{Claim: true}), fmt.Sprintf("[%d]", i); got != want {
			t.Errorf("claimed %s, want %s", got, want)
		}
		if cancelled, err := tp.CancelTimer(t.Context(), r.ID, fmt.Sprint(i), runstore.Fence{}); !cancelled || err != nil {
			t.Errorf("CancelTimer = %v, %v, want true", cancelled, err)
		}
	}
}

// mute applies commits to a record and never answers them.
type mute struct {
	runstore.RunStore
	key runstore.RecordKey
}

func (s mute) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := s.RunStore.Commit(ctx, b)
	if len(b.Records) == 1 && b.Records[0].Key == s.key {
		return runstore.Committed{}, &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("reply lost")}
	}
	return done, err
}

func TestAClaimOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	var log bytes.Buffer
	tp := tape.New(mute{s, "timer/mute"}, &tape.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	setTimer(t, inner, r.ID, "mute", 1)
	if listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Claim: true}); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("the only claim = %+v, %v, want ErrUnknownOutcome", listed, err)
	}
	setTimer(t, inner, r.ID, "mute", 2)
	setTimer(t, inner, r.ID, "heard", 2)
	if got := due(t, tp, tape.DueTimersQuery{Claim: true}); got != "[heard]" {
		t.Errorf("claimed %s, want [heard]", got)
	}
	if !strings.Contains(log.String(), "timer=mute") {
		t.Errorf("log = %s, want the timer that may be fired", log.String())
	}
}

// denying refuses commits to a record, which come before or behind those to all others.
type denying struct {
	runstore.RunStore
	key   runstore.RecordKey
	first bool
}

func (s denying) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	refused := len(b.Records) == 1 && b.Records[0].Key == s.key
	if refused == s.first {
		time.Sleep(time.Minute) // until the others have begun
	} else {
		time.Sleep(time.Hour) // until the others have failed, with all their repeats
	}
	if refused {
		return runstore.Committed{}, errDown
	}
	return s.RunStore.Commit(ctx, b)
}

// A claim of which one commit was surely not applied and another one may have been has an unknown
// outcome, whichever comes first.
func TestAClaimOfUnknownOutcomeAndFault(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			inner, s, _ := newTape(t)
			r := begin(t, inner, "i")
			setTimer(t, inner, r.ID, "mute", 1)
			setTimer(t, inner, r.ID, "refused", 1)
			var log bytes.Buffer
			tp := tape.New(denying{mute{s, "timer/mute"}, "timer/refused", first}, &tape.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Claim: true})
			if runstore.OutcomeOf(err) != runstore.Unknown || len(listed) > 0 {
				t.Errorf("refused first %v: %+v, %v, want an unknown outcome", first, listed, err)
			}
			if !strings.Contains(log.String(), "timer=refused") {
				t.Errorf("refused first %v: log = %s, want the timer that the error does not name", first, log.String())
			}
		})
	}
}

// broken fails every scan behind the first page.
type broken struct{ runstore.RunStore }

func (s broken) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if q.After != "" {
		return nil, &runstore.OpError{Op: "scan", Err: runstore.ErrUnavailable}
	}
	q.Limit = 1
	return s.RunStore.ScanIndex(ctx, q)
}

// claimPart claims the timers of a part of the list after a bookmark, and returns their ids and the next
// bookmark.
func claimPart(t *testing.T, tp *tape.Tape, after string) (ids, next string) {
	t.Helper()
	all := func(string) bool { return true }
	listed, next, err := tp.Part(all, after).ListDueTimers(t.Context(), tape.DueTimersQuery{Claim: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range listed {
		ids += m.ID
	}
	return ids, next
}

// A part that ends at an error, of a read or of a claim, returns the timers that it fired and a bookmark:
// the next part shows the others.
func TestPartThatFailsIsNotTheLast(t *testing.T) {
	t.Parallel()
	for what, faulty := range map[string]func(runstore.RunStore) runstore.RunStore{
		"read":  func(s runstore.RunStore) runstore.RunStore { return broken{s} },
		"claim": func(s runstore.RunStore) runstore.RunStore { return denying{s, "timer/b", false} },
	} {
		synctest.Test(t, func(t *testing.T) {
			inner, s, _ := newTape(t)
			r := begin(t, inner, "i")
			setTimer(t, inner, r.ID, "a", 1)
			setTimer(t, inner, r.ID, "b", 2)
			tp := tape.New(faulty(s), &tape.Options{Logger: slog.New(slog.DiscardHandler)})
			ids, next := claimPart(t, tp, "")
			if ids != "a" || next == "" {
				t.Fatalf("the part of the failed %s: %q, bookmark %q; want a, and a bookmark", what, ids, next)
			}
			if ids, next := claimPart(t, inner, next); ids != "b" || next != "" {
				t.Errorf("the part after the failed %s: %q, bookmark %q; want b at the end", what, ids, next)
			}
		})
	}
}

func TestAScanThatFailsLosesNoClaim(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	setTimer(t, inner, r.ID, "a", 1)
	setTimer(t, inner, r.ID, "b", 2)
	tp := tape.New(broken{s}, &tape.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if listed, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{}); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("ListDueTimers = %+v, %v, want ErrUnavailable", listed, err)
	}
	if got := due(t, tp, tape.DueTimersQuery{Claim: true}); got != "[a]" {
		t.Errorf("claimed %s, want [a]", got)
	}
}
