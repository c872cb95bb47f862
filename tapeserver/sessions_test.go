package tapeserver_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	c := client(t)
	get := func(id string) *tapepb.GetSessionResponse {
		t.Helper()
		r, err := c.GetSession(t.Context(), &tapepb.GetSessionRequest{AppName: "app", UserId: "u", SessionId: id})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	add := func(id string, e *tapepb.EventRecord, delta string) *tapepb.AppendEventResponse {
		t.Helper()
		r, err := c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{AppName: "app", UserId: "u", SessionId: id, Event: e, StateDeltaJson: delta})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// 78
	created, err := c.CreateSession(t.Context(), &tapepb.CreateSessionRequest{AppName: "app", UserId: "u", SessionId: "s", StateJson: `{"k":1}`})
	if err != nil || created.GetStateJson() != `{"k":1}` || created.GetLastUpdateTimeMs() <= 0 {
		t.Fatalf("CreateSession = %v, %v", created, err)
	}
	e := &tapepb.EventRecord{Id: "e", InvocationId: "i", Author: "a", Branch: "b", ContentJson: "{}", ActionsJson: "[]", TimestampMs: 1_700_000_000_000}
	if r := add("s", e, `{"k":2}`); !proto.Equal(r.GetEvent(), e) || r.GetLastUpdateTimeMs() != e.GetTimestampMs() {
		t.Errorf("AppendEvent = %v, want %v", r, e)
	}
	r := get("s")
	if s := r.GetSession(); !r.GetFound() || s.GetStateJson() != `{"k":2}` || len(s.GetEvents()) != 1 || !proto.Equal(s.GetEvents()[0], e) || r.GetTruncated() {
		t.Errorf("GetSession = %v", r)
	}
	list, err := c.ListSessions(t.Context(), &tapepb.ListSessionsRequest{AppName: "app", UserId: "u"})
	if err != nil || len(list.GetSessions()) != 1 || list.GetSessions()[0].GetStateJson() != `{"k":2}` || len(list.GetSessions()[0].GetEvents()) != 0 {
		t.Errorf("ListSessions = %v, %v", list, err)
	}
	// 80
	if r := add("absent", &tapepb.EventRecord{Id: "first"}, ""); r.GetEvent().GetTimestampMs() <= 0 {
		t.Errorf("AppendEvent to an absent session = %v", r)
	}
	_, err = c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{AppName: "app", SessionId: "s"})
	wantStatus(t, "AppendEvent", err, codes.InvalidArgument, "append_event: missing event")
	// 81
	for _, want := range []bool{true, false} {
		d, err := c.DeleteSession(t.Context(), &tapepb.DeleteSessionRequest{AppName: "app", UserId: "u", SessionId: "s"})
		if err != nil || d.GetDeleted() != want {
			t.Errorf("DeleteSession = %v, %v, want %t", d, err, want)
		}
		if r := get("s"); r.GetFound() || r.GetSession() != nil {
			t.Errorf("GetSession after the deletion = %v", r)
		}
	}
}
