package tapeserver_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func setTimer(t *testing.T, c tapepb.TapeClient, req *tapepb.SetTimerRequest) *tapepb.TimerRecord {
	t.Helper()
	m, err := c.SetTimer(t.Context(), req)
	if err != nil {
		t.Fatalf("SetTimer: %v", err)
	}
	return m
}

func dueTimers(t *testing.T, c tapepb.TapeClient, req *tapepb.ListDueTimersRequest) []*tapepb.TimerRecord {
	t.Helper()
	l, err := c.ListDueTimers(t.Context(), req)
	if err != nil {
		t.Fatalf("ListDueTimers: %v", err)
	}
	return l.GetTimers()
}

const future = 4_000_000_000_000 // in the year 2096

func TestTimers(t *testing.T) { // 54, 55
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	req := &tapepb.SetTimerRequest{RunId: id, FireAtMs: 1000, Kind: "redrive", PayloadJson: "{\"a\": 1}\n"}
	first := setTimer(t, c, req)
	want := &tapepb.TimerRecord{
		RunId: id, TimerId: first.GetTimerId(), FireAtMs: 1000, Kind: "redrive", PayloadJson: "{\"a\": 1}\n", CreatedAtMs: first.GetCreatedAtMs(),
	}
	if len(first.GetTimerId()) != 36 || !proto.Equal(first, want) || !fromNow(first.GetCreatedAtMs(), 0) {
		t.Errorf("SetTimer = %v, want an id and %v", first, want)
	}
	if listed := dueTimers(t, c, &tapepb.ListDueTimersRequest{}); len(listed) != 1 || !proto.Equal(listed[0], first) {
		t.Errorf("listed %v, want %v", listed, first)
	}
	want.Fired = true
	if claimed := dueTimers(t, c, &tapepb.ListDueTimersRequest{Claim: true}); len(claimed) != 1 || !proto.Equal(claimed[0], want) {
		t.Errorf("claimed %v, want %v", claimed, want)
	}
	for _, again := range []*tapepb.ListDueTimersRequest{{Claim: true}, {}, {Claim: true, NowMs: future}, {NowMs: future}} {
		if listed := dueTimers(t, c, again); len(listed) != 0 {
			t.Errorf("ListDueTimers(%v) = %v after the claim, want nothing", again, listed)
		}
	}
	// Set again it is due again, since its first creation.
	req.TimerId = first.GetTimerId()
	if again := setTimer(t, c, req); !proto.Equal(again, first) {
		t.Errorf("SetTimer again = %v, want %v", again, first)
	}
	if claimed := dueTimers(t, c, &tapepb.ListDueTimersRequest{Claim: true}); len(claimed) != 1 || !proto.Equal(claimed[0], want) {
		t.Errorf("claimed %v, want %v", claimed, want)
	}
	req.FireAtMs = future
	setTimer(t, c, req)
	for now, n := range map[int64]int{0: 0, future - 1: 0, future: 1} {
		if listed := dueTimers(t, c, &tapepb.ListDueTimersRequest{NowMs: now}); len(listed) != n {
			t.Errorf("at %d: %v, want %d", now, listed, n)
		}
	}
	for _, want := range []bool{true, false} {
		r, err := c.CancelTimer(t.Context(), &tapepb.CancelTimerRequest{RunId: id, TimerId: req.GetTimerId()})
		if err != nil || r.GetCancelled() != want {
			t.Errorf("CancelTimer = %v, %v, want %v", r, err, want)
		}
	}
	if cursor := getRun(t, c, id).GetSeqCursor(); cursor != 1 {
		t.Errorf("cursor %d, want 1: timers are not journaled", cursor)
	}
	_, err := c.SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: id, FireAtMs: 1 << 62})
	wantStatus(t, "SetTimer out of range", err, codes.InvalidArgument, "fire_at_ms")
	_, err = c.SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: id, PayloadJson: strings.Repeat("x", tape.MaxTimer+1)})
	wantTooLarge(t, "SetTimer", err, "payload_json", "2000000")
}

func TestTheLargestTimersAreAnswered(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	for _, timer := range []string{"a", "b", "c"} {
		setTimer(t, c, &tapepb.SetTimerRequest{RunId: id, TimerId: timer + strings.Repeat("x", 1017), FireAtMs: 1, PayloadJson: strings.Repeat("x", tape.MaxTimer)})
	}
	for _, want := range []int{2, 1, 0} {
		if claimed := dueTimers(t, c, &tapepb.ListDueTimersRequest{Claim: true}); len(claimed) != want {
			t.Errorf("claimed %d, want %d", len(claimed), want)
		}
	}
}
