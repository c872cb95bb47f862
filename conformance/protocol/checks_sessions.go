package protocol

import (
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func sessionCases() []Case {
	return []Case{
		{Group: "sessions", Check: 78, Name: "append-merges-state", Run: appendMerges,
			Doc: "AppendEvent adds an event and merges its delta; ListSessions shows the session without its events."},
		{Group: "sessions", Check: 79, Name: "null-deletes-and-objects-are-replaced", Run: mergeIsShallow,
			Doc: "A null in a delta deletes its key, and an object replaces an existing one."},
		{Group: "sessions", Check: 80, Name: "append-creates", Run: appendCreates,
			Doc: "AppendEvent to an absent session creates it; without an event it is INVALID_ARGUMENT. max_events names the newest events."},
		{Group: "sessions", Check: 81, Name: "deleted-session-is-gone", Run: deletedIsGone,
			Doc: "DeleteSession reports whether the session existed, and deletes it with its events."},
		{Group: "sessions", Check: 82, Name: "create-again-keeps-events", Run: createAgain,
			Doc: "CreateSession without an id generates one; with the id of an existing session it replaces the state and keeps the events."},
	}
}

func (e *Env) createSession(t T, id, state string) *tapepb.Session {
	t.Helper()
	s, _ := e.Client.CreateSession(t.Context(), &tapepb.CreateSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: id, StateJson: state})
	return s
}

func (e *Env) appendRequest(session, event, delta string) *tapepb.AppendEventRequest {
	return &tapepb.AppendEventRequest{
		AppName: e.Name("app"), UserId: "ana", SessionId: session, StateDeltaJson: delta,
		Event: &tapepb.EventRecord{Id: event, InvocationId: "i", Author: "agent", ContentJson: `"` + event + `"`, ActionsJson: "{}"},
	}
}

func (e *Env) append(t T, session, event, delta string) *tapepb.AppendEventResponse {
	t.Helper()
	r, _ := e.Client.AppendEvent(t.Context(), e.appendRequest(session, event, delta))
	return r
}

// session returns a session with its newest events, or with all of them for 0; nil if the session
// does not exist.
func (e *Env) session(t T, id string, newest int64) *tapepb.Session {
	t.Helper()
	r, _ := e.Client.GetSession(t.Context(), &tapepb.GetSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: id, MaxEvents: newest})
	require(t, r.GetFound() == (r.GetSession() != nil), "GetSession: found %t, session %v", r.GetFound(), r.GetSession())
	return r.GetSession()
}

func eventIDs(s *tapepb.Session) (ids []string) {
	for _, event := range s.GetEvents() {
		ids = append(ids, event.GetId())
	}
	return ids
}

// expectState compares a session's state as JSON, ignoring spacing and the order of members.
func expectState(t T, s *tapepb.Session, want string) {
	t.Helper()
	if !reflect.DeepEqual(object(t, s.GetStateJson()), object(t, want)) {
		t.Errorf("the state is %s, want %s", s.GetStateJson(), want)
	}
}

func appendMerges(t T, e *Env) {
	e.createSession(t, "s", `{"k":1}`)
	r := e.append(t, "s", "e1", `{"k":2}`)
	expect(t, r.GetLastUpdateTimeMs() > 0 && r.GetEvent().GetTimestampMs() == r.GetLastUpdateTimeMs(), "AppendEvent = %v, want its time", r)
	s := e.session(t, "s", 0)
	expectState(t, s, `{"k":2}`)
	expect(t, slices.Equal(eventIDs(s), []string{"e1"}), "the events are %q, want e1", eventIDs(s))
	e.createSession(t, "later", "")
	e.append(t, "later", "e2", "")
	list, _ := e.Client.ListSessions(t.Context(), &tapepb.ListSessionsRequest{AppName: e.Name("app"), UserId: "ana"})
	var ids []string
	for _, one := range list.GetSessions() {
		ids = append(ids, one.GetSessionId())
		expect(t, len(one.GetEvents()) == 0, "ListSessions has events: %v", one)
	}
	slices.Sort(ids) // both may have the same millisecond
	require(t, slices.Equal(ids, []string{"later", "s"}), "ListSessions lists %q", ids)
	for _, one := range list.GetSessions() {
		if one.GetSessionId() == "s" {
			expectState(t, one, `{"k":2}`)
		}
	}
	other, _ := e.Client.ListSessions(t.Context(), &tapepb.ListSessionsRequest{AppName: e.Name("app")})
	expect(t, len(other.GetSessions()) == 0, "ListSessions of another user lists %v", other.GetSessions())
}

func mergeIsShallow(t T, e *Env) {
	e.createSession(t, "s", `{"a":1,"b":2}`)
	e.append(t, "s", "e1", `{"b":null,"c":4}`)
	expectState(t, e.session(t, "s", 0), `{"a":1,"c":4}`)
	e.append(t, "s", "e2", `{"a":{"x":1,"y":2}}`)
	e.append(t, "s", "e3", `{"a":{"x":3}}`)
	expectState(t, e.session(t, "s", 0), `{"a":{"x":3},"c":4}`)
}

func appendCreates(t T, e *Env) {
	for i := range 5 {
		e.append(t, "absent", fmt.Sprintf("e%d", i), fmt.Sprintf(`{"k":%d}`, i))
	}
	s := e.session(t, "absent", 0)
	expectState(t, s, `{"k":4}`)
	expect(t, slices.Equal(eventIDs(s), []string{"e0", "e1", "e2", "e3", "e4"}), "the events are %q", eventIDs(s))
	if got := eventIDs(e.session(t, "absent", 2)); !slices.Equal(got, []string{"e3", "e4"}) {
		t.Errorf("the newest 2 events are %q, want e3 and e4", got)
	}
	_, err := e.Try.AppendEvent(t.Context(), &tapepb.AppendEventRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "absent"})
	expectStatus(t, "AppendEvent without an event", err, codes.InvalidArgument, "missing event")
}

func deletedIsGone(t T, e *Env) {
	e.append(t, "s", "e1", `{"k":1}`)
	for _, want := range []bool{true, false} {
		r, _ := e.Client.DeleteSession(t.Context(), &tapepb.DeleteSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "s"})
		expect(t, r.GetDeleted() == want, "DeleteSession = %v, want %t", r, want)
		expect(t, e.session(t, "s", 0) == nil, "the deleted session is found")
	}
	e.append(t, "s", "e2", "")
	s := e.session(t, "s", 0)
	expectState(t, s, "{}")
	expect(t, slices.Equal(eventIDs(s), []string{"e2"}), "a new session of that id has the events %q", eventIDs(s))
}

func createAgain(t T, e *Env) {
	made := e.createSession(t, "", "")
	expect(t, made.GetSessionId() != "" && made.GetStateJson() == "{}" && e.session(t, made.GetSessionId(), 0) != nil,
		"CreateSession without an id = %v", made)
	e.createSession(t, "s", `{"k":1}`)
	e.append(t, "s", "e1", `{"l":1}`)
	e.createSession(t, "s", `{"new":true}`)
	s := e.session(t, "s", 0)
	expectState(t, s, `{"new":true}`)
	expect(t, slices.Equal(eventIDs(s), []string{"e1"}), "the events are %q, want e1", eventIDs(s))
}
