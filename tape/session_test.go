package tape_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

var session = tape.SessionKey{App: "app", User: "user", Session: "s"}

func appendEvent(t *testing.T, tp *tape.Tape, key tape.SessionKey, e tape.SessionEvent, delta string) tape.SessionEvent {
	t.Helper()
	got, err := tp.AppendEvent(t.Context(), key, e, delta, runstore.Fence{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func getSession(t *testing.T, tp *tape.Tape, key tape.SessionKey, limit int) tape.Session {
	t.Helper()
	s, found, err := tp.GetSession(t.Context(), key, limit)
	if err != nil || !found {
		t.Fatalf("session: found %t, %v", found, err)
	}
	return s
}

func ids(events []tape.SessionEvent) string {
	var all []string
	for _, e := range events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

func TestSessionLife(t *testing.T) { // 78 to 82
	t.Parallel()
	tp, s, store := newTape(t)
	created, err := tp.CreateSession(t.Context(), session, `{"k":1}`, runstore.Fence{})
	if err != nil || created.State != `{"k":1}` || created.SessionKey != session || len(created.Events) > 0 {
		t.Fatalf("create: %+v, %v", created, err)
	}
	store.Advance(time.Second)
	full := tape.SessionEvent{ID: "1", Invocation: "i", Author: "a", Branch: "b", Content: `{"c":"ö"}`, Actions: `[]`}
	first := appendEvent(t, tp, session, full, `{"k":2}`)
	if full.Time = first.Time; first.Time.IsZero() || first != full {
		t.Errorf("append: %+v, want %+v", first, full)
	}
	at := first.Time.Add(-time.Hour)
	if e := appendEvent(t, tp, session, tape.SessionEvent{ID: "2", Time: at}, ""); !e.Time.Equal(at) {
		t.Errorf("append: %+v, want the caller's time", e)
	}
	got := getSession(t, tp, session, 0)
	if got.State != `{"k":2}` || ids(got.Events) != "1 2" || got.Events[0] != full || !got.Updated.Equal(at) {
		t.Errorf("get: %+v", got)
	}
	again, err := tp.CreateSession(t.Context(), session, "", runstore.Fence{})
	if err != nil || again.State != "{}" {
		t.Errorf("create again: %+v, %v", again, err)
	}
	if got := getSession(t, tp, session, 0); got.State != "{}" || ids(got.Events) != "1 2" {
		t.Errorf("after a second creation: %+v, want a new state and the events", got)
	}
	for _, want := range []bool{true, false} {
		if deleted, err := tp.DeleteSession(t.Context(), session, runstore.Fence{}); err != nil || deleted != want {
			t.Errorf("delete: %t, %v, want %t", deleted, err, want)
		}
		if _, found, err := tp.GetSession(t.Context(), session, 0); found || err != nil {
			t.Errorf("after the deletion: found %t, %v", found, err)
		}
	}
	appendEvent(t, tp, session, tape.SessionEvent{ID: "new"}, `{"n":1}`)
	if got := getSession(t, tp, session, 0); got.State != `{"n":1}` || ids(got.Events) != "new" {
		t.Errorf("a session that begins with an event: %+v", got)
	}
	fresh, err := tp.CreateSession(t.Context(), tape.SessionKey{App: "app"}, "", runstore.Fence{})
	if err != nil || len(fresh.Session) != 36 {
		t.Errorf("create without an id: %+v, %v", fresh, err)
	}
	// No list of runs shows a session, and no run is found under its name.
	runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
	if err != nil || len(runs) > 0 {
		t.Errorf("runs: %+v, %v", runs, err)
	}
}

func TestStateMerge(t *testing.T) { // 79
	t.Parallel()
	tp, _, _ := newTape(t)
	for i, c := range []struct{ state, delta, want string }{
		{`{"a":1,"b":2}`, `{"b":null,"c":4}`, `{"a":1,"c":4}`},
		{`{"a":{"x":1,"y":2}}`, `{"a":{"x":3}}`, `{"a":{"x":3}}`},
		{`{"b":1, "a":<tag>}`, `{"c":2}`, `{"c":2}`},
		{`{"b":1,  "a":"<tag>"}`, ``, `{"b":1,  "a":"<tag>"}`},
		{`{"b":1,  "a":"<tag>"}`, `{"c":2}`, `{"a":"<tag>","b":1,"c":2}`},
		{`[1,2]`, `{"a":1}`, `[1,2]`},
		{`null`, `{"a":1}`, `null`},
		{`{"a":1}`, `[2]`, `{"a":1}`},
		{`{"a":1}`, `oops`, `{"a":1}`},
		{`{"n":12345678901234567890.10}`, `{}`, `{"n":12345678901234567890.10}`},
	} {
		key := tape.SessionKey{App: "app", Session: fmt.Sprint(i)}
		if _, err := tp.CreateSession(t.Context(), key, c.state, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
		appendEvent(t, tp, key, tape.SessionEvent{}, c.delta)
		if got := getSession(t, tp, key, 0).State; got != c.want {
			t.Errorf("%s and %s: %s, want %s", c.state, c.delta, got, c.want)
		}
	}
}

// Concurrent appends to one session all count, and the state is that of all of them.
func TestConcurrentAppends(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	const writers, each = 8, 5
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				name := fmt.Sprintf("%d-%d", w, i)
				if _, err := tp.AppendEvent(t.Context(), session, tape.SessionEvent{ID: name}, fmt.Sprintf(`{%q:1}`, name), runstore.Fence{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := getSession(t, tp, session, 0)
	seen := map[string]bool{}
	for _, e := range got.Events {
		seen[e.ID] = true
	}
	if len(got.Events) != writers*each || len(seen) != writers*each || strings.Count(got.State, ":1") != writers*each {
		t.Errorf("%d events, %d names, state %s; want %d of each", len(got.Events), len(seen), got.State, writers*each)
	}
}

func TestSessionEventsFromTheEnd(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	large := strings.Repeat("x", tape.MaxSessionEvent)
	var want []string
	for i := range 60 {
		e := tape.SessionEvent{ID: fmt.Sprint(i)}
		if i == 55 {
			e.Content = large // several entries
		}
		appendEvent(t, tp, session, e, "")
		want = append(want, e.ID)
	}
	for _, limit := range []int{0, 1, 4, 5, 6, 20, 59, 60, 100} {
		n := limit
		if n == 0 || n > 60 {
			n = 60
		}
		got := getSession(t, tp, session, limit)
		if ids(got.Events) != strings.Join(want[60-n:], " ") || got.Truncated {
			t.Errorf("the last %d events: %s", limit, ids(got.Events))
		}
		if n > 4 && got.Events[n-5].Content != large {
			t.Errorf("the last %d events: the large one has %d bytes", limit, len(got.Events[n-5].Content))
		}
	}
	// Three large ones do not fit into an answer: the oldest are left out.
	for i := 60; i < 63; i++ {
		appendEvent(t, tp, session, tape.SessionEvent{ID: fmt.Sprint(i), Content: large}, "")
	}
	if got := getSession(t, tp, session, 0); ids(got.Events) != "61 62" || !got.Truncated {
		t.Errorf("events of an answer that is full: %s, truncated %t", ids(got.Events), got.Truncated)
	}
}

func TestListSessions(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	for _, key := range []tape.SessionKey{{App: "app", Session: "a"}, {App: "app", Session: "b"}, {App: "app", User: "u", Session: "c"}} {
		store.Advance(time.Second)
		if _, err := tp.CreateSession(t.Context(), key, `{"k":1}`, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	store.Advance(time.Second)
	appendEvent(t, tp, tape.SessionKey{App: "app", Session: "a"}, tape.SessionEvent{}, `{"k":2}`)
	list := func(user string) string {
		t.Helper()
		all, err := tp.ListSessions(t.Context(), "app", user)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range all {
			names = append(names, s.Session+s.State)
			if len(s.Events) > 0 {
				t.Errorf("a list has events: %+v", s)
			}
		}
		return strings.Join(names, " ")
	}
	if got, want := list(""), `a{"k":2} b{"k":1}`; got != want {
		t.Errorf("sessions: %s, want %s", got, want)
	}
	if got, want := list("u"), `c{"k":1}`; got != want {
		t.Errorf("sessions of u: %s, want %s", got, want)
	}
}

func TestSessionInput(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	huge := strings.Repeat("x", tape.MaxSessionState+1)
	half := fmt.Sprintf(`{"a":%q}`, huge[:tape.MaxSessionState/2])
	_, nameErr := tp.CreateSession(t.Context(), tape.SessionKey{App: huge[:20_000], Session: "s"}, "", runstore.Fence{})
	_, stateErr := tp.CreateSession(t.Context(), session, huge, runstore.Fence{})
	appending := func(e tape.SessionEvent, delta string) error {
		_, err := tp.AppendEvent(t.Context(), session, e, delta, runstore.Fence{})
		return err
	}
	for field, err := range map[string]error{
		"app_name": nameErr, "state_json": stateErr,
		"event.content_json": appending(tape.SessionEvent{Content: huge}, ""),
		"event.author":       appending(tape.SessionEvent{Author: huge[:20_000]}, ""),
		"event.id":           appending(tape.SessionEvent{ID: "\xff"}, ""),
		"event.timestamp_ms": appending(tape.SessionEvent{Time: runstore.EndOfTime.Add(time.Hour)}, ""),
	} {
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Field != field {
			t.Errorf("%v, want an error that names %s", err, field)
		}
	}
	if _, found, err := tp.GetSession(t.Context(), session, 0); found || err != nil {
		t.Errorf("refused input made a session: %t, %v", found, err)
	}
	if err := appending(tape.SessionEvent{ID: "1"}, half); err != nil {
		t.Fatal(err)
	}
	err := appending(tape.SessionEvent{ID: "2"}, strings.Replace(half, `"a"`, `"b"`, 1)+" ")
	if !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("a state that grows beyond its limit: %v", err)
	}
	if got := getSession(t, tp, session, 0); ids(got.Events) != "1" || got.State != half {
		t.Errorf("the refused event changed the session: %s", ids(got.Events))
	}
}

// A reply that is lost, of any step of an append, appends the event once.
func TestLostRepliesOfSessions(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	for i := range 3 {
		appendEvent(t, tp, session, tape.SessionEvent{ID: fmt.Sprint(i)}, "")
	}
	if got := getSession(t, tp, session, 0); ids(got.Events) != "0 1 2" {
		t.Errorf("events: %s", ids(got.Events))
	}
	if deleted, err := tp.DeleteSession(t.Context(), session, runstore.Fence{}); err != nil || !deleted {
		t.Errorf("delete: %t, %v", deleted, err)
	}
}
