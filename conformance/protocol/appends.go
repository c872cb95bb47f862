package protocol

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func appendCases() []Case {
	return []Case{
		{Group: "T9", Name: "state-and-events-agree", Run: stateAndEventsAgree,
			Doc: "Concurrent appends to one session all succeed. Whenever the session is read, its state has the deltas of exactly its events."},
		{Group: "T9", Name: "first-appends-create-one-session", Run: firstAppends,
			Doc: "Concurrent appends to an absent session create one session with all events."},
	}
}

// expectWhole checks that the state of a session matches its events: event N sets key N.
func expectWhole(t T, s *tapepb.Session) {
	t.Helper()
	if s == nil {
		return
	}
	ids, state := eventIDs(s), object(t, s.GetStateJson())
	for _, id := range ids {
		expect(t, state[id] == true, "the session has the event %s, and the state %s", id, s.GetStateJson())
	}
	expect(t, len(state) == len(ids), "the session has the events %q and the state %s", ids, s.GetStateJson())
}

// appendAll appends n events to a session concurrently while a reader reads it.
func (e *Env) appendAll(t T, session string, n int) {
	t.Helper()
	done := make(chan struct{})
	var reading sync.WaitGroup
	reader := e.NewProcess(t)
	reading.Go(func() {
		for {
			r, err := reader.Try.GetSession(t.Context(), &tapepb.GetSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: session})
			if err != nil {
				t.Errorf("GetSession: %v", err)
				return
			}
			seen := r.GetSession()
			if seen != nil && len(eventIDs(seen)) != countMembers(seen.GetStateJson()) {
				t.Errorf("a reader sees the events %q and the state %s", eventIDs(seen), seen.GetStateJson())
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	together(n, func(i int) {
		id := fmt.Sprintf("e%d", i)
		if _, err := e.Try.AppendEvent(t.Context(), e.appendRequest(session, id, fmt.Sprintf(`{%q:true}`, id))); err != nil {
			t.Errorf("AppendEvent: %v", err)
		}
	})
	close(done)
	reading.Wait()
	s := e.session(t, session, 0)
	expectWhole(t, s)
	ids := eventIDs(s)
	slices.Sort(ids)
	expect(t, len(slices.Compact(ids)) == n && len(s.GetEvents()) == n, "the session has %d events of %d appends: %q", len(s.GetEvents()), n, ids)
}

func stateAndEventsAgree(t T, e *Env) {
	e.createSession(t, "s", "")
	e.appendAll(t, "s", e.Rounds(32))
}

func firstAppends(t T, e *Env) {
	for round := range e.Rounds(4) {
		e.appendAll(t, fmt.Sprint(round), 4)
	}
}
