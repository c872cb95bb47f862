package tapeserver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// eventStream is a stream of either feed.
type eventStream = grpc.ServerStreamingClient[tapepb.EventEntry]

// feeds are the ways to read the feed of all runs behind a position.
var feeds = map[string]func(context.Context, tapepb.TapeClient, string, int64) (eventStream, error){
	"SubscribeEvents": func(ctx context.Context, c tapepb.TapeClient, pattern string, from int64) (eventStream, error) {
		return c.SubscribeEvents(ctx, &tapepb.SubscribeEventsRequest{SubjectPattern: pattern, FromGlobalSeq: from, RunId: "ignored", Kind: "ignored"})
	},
	"SubscribeBySubject": func(ctx context.Context, c tapepb.TapeClient, pattern string, from int64) (eventStream, error) {
		return c.SubscribeBySubject(ctx, &tapepb.SubscribeBySubjectRequest{SubjectPattern: pattern, FromGlobalSeq: from})
	},
}

// opened returns a stream whose headers have come.
func opened(t *testing.T) func(eventStream, error) eventStream {
	return func(stream eventStream, err error) eventStream {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
}

// received returns the next n entries of a stream.
func received(t *testing.T, stream eventStream, n int) []*tapepb.EventEntry {
	t.Helper()
	all := make([]*tapepb.EventEntry, n)
	for i := range all {
		var err error
		if all[i], err = stream.Recv(); err != nil {
			t.Fatalf("after %d of %d entries: %v", i, n, err)
		}
	}
	return all
}

func decide(t *testing.T, c tapepb.TapeClient, run string, index int64) {
	t.Helper()
	if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: index, Model: fmt.Sprint("m", index)}); err != nil {
		t.Fatal(err)
	}
}

func writeValue(t *testing.T, c tapepb.TapeClient, key string) {
	t.Helper()
	if _, err := c.WriteValue(t.Context(), &tapepb.WriteValueRequest{Namespace: "n", Key: key, ValueJson: "1", IfVersion: -1}); err != nil {
		t.Fatal(err)
	}
}

// The entries of runs and values arrive in order, those that exist first, and none of sessions.
func TestFeeds(t *testing.T) { // 59
	t.Parallel()
	for name, subscribe := range feeds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := client(t)
			id := begin(t, c, "i").GetRunId()
			decide(t, c, id, 0)
			if _, err := c.CreateSession(t.Context(), &tapepb.CreateSessionRequest{AppName: "a", UserId: "u", SessionId: "s"}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{AppName: "a", UserId: "u", SessionId: "s", Event: &tapepb.EventRecord{Id: "e"}}); err != nil {
				t.Fatal(err)
			}
			writeValue(t, c, "k")
			stream := opened(t)(subscribe(t.Context(), c, "/tape/**", 0))
			all := received(t, stream, 3)
			writeValue(t, c, "k") // from here on it waits for what is written
			all = append(all, received(t, stream, 1)...)
			decide(t, c, id, 1)
			all = append(all, received(t, stream, 1)...)
			last := int64(0)
			for i, want := range []string{
				"run /tape/run/running/treasury/ana/s-1/" + id, "decision /tape/decision/recorded/" + id + "/0",
				"value /tape/value/changed/n/k", "value /tape/value/changed/n/k", "decision /tape/decision/recorded/" + id + "/1",
			} {
				e := all[i]
				run, seq := id, map[int]int64{0: 1, 1: 2, 4: 3}[i]
				if e.GetKind() == "value" {
					run, seq = "", e.GetGlobalSeq()
				}
				if got := e.GetKind() + " " + e.GetSubject(); got != want || e.GetRunId() != run || e.GetSeq() != seq || e.GetGlobalSeq() <= last ||
					e.GetSchemaVersion() != 1 || !fromNow(e.GetTsMs(), 0) || !strings.HasPrefix(e.GetPayloadJson(), "{") {
					t.Errorf("entry %d = %v, want %s", i, e, want)
				}
				last = e.GetGlobalSeq()
			}
			behind := opened(t)(subscribe(t.Context(), c, "", all[2].GetGlobalSeq()))
			if got := received(t, behind, 2); got[0].GetGlobalSeq() != all[3].GetGlobalSeq() || got[1].GetGlobalSeq() != all[4].GetGlobalSeq() {
				t.Errorf("behind %d: %v", all[2].GetGlobalSeq(), got)
			}
			values := opened(t)(subscribe(t.Context(), c, "/tape/value/*/n/*", 0))
			if got := received(t, values, 2); got[0].GetGlobalSeq() != all[2].GetGlobalSeq() {
				t.Errorf("the entries of values are %v", got)
			}
		})
	}
}

func TestSubscribeBySubjectEvaluatesPredicates(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	for i := range int64(4) {
		decide(t, c, id, i)
	}
	for predicate, want := range map[string][]string{
		`payload.model == "m2"`:                        {"m2"},
		`payload.decision_index >= 1 && seq < 5`:       {"m1", "m2"},
		`kind == "decision" && run_id == "` + id + `"`: {"m0", "m1", "m2", "m3"},
		" ": {"", "m0", "m1", "m2", "m3"},
	} {
		stream := opened(t)(c.SubscribeBySubject(t.Context(), &tapepb.SubscribeBySubjectRequest{PredicateCel: predicate}))
		for i, e := range received(t, stream, len(want)) {
			if want[i] != "" && !strings.Contains(e.GetPayloadJson(), `"`+want[i]+`"`) {
				t.Errorf("%s: entry %d is %v, want %s", predicate, i, e, want[i])
			}
		}
	}
	// A fault is no error: the stream stays open, and sends nothing.
	for _, predicate := range []string{"payload.", "payload.missing == 1", "payload", "[1,2,3].all(x, payload.model == )"} {
		ctx, cancel := context.WithCancel(t.Context())
		stream := opened(t)(c.SubscribeBySubject(ctx, &tapepb.SubscribeBySubjectRequest{PredicateCel: predicate}))
		marker := opened(t)(c.SubscribeBySubject(t.Context(), &tapepb.SubscribeBySubjectRequest{}))
		received(t, marker, 5)
		cancel()
		if e, err := stream.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("%s: the stream sends %v, %v", predicate, e, err)
		}
	}
}

func TestSubscribeEventsWithoutACursor(t *testing.T) { // 62
	t.Parallel()
	c := client(t)
	a, b := begin(t, c, "a").GetRunId(), begin(t, c, "b").GetRunId()
	all := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{}))
	ofA := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{RunId: a, FromTsMs: -1}))
	decisions := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{Kind: "decision"}))
	received(t, all, 2)
	decide(t, c, b, 0)
	decide(t, c, a, 0)
	if got := received(t, all, 2); got[0].GetRunId() != b || got[1].GetRunId() != a {
		t.Errorf("the entries are %v", got)
	}
	if got := received(t, ofA, 2); got[0].GetKind() != "run" || got[1].GetKind() != "decision" || got[0].GetRunId() != a || got[1].GetRunId() != a {
		t.Errorf("the entries of run a are %v", got)
	}
	if got := received(t, decisions, 2); got[0].GetRunId() != b || got[1].GetRunId() != a {
		t.Errorf("the decisions are %v", got)
	}
}

func TestFeedsRefuseBadInput(t *testing.T) {
	t.Parallel()
	c := client(t)
	long := "/" + strings.Repeat("x", 1024)
	for name, subscribe := range feeds {
		for _, bad := range []struct {
			pattern string
			from    int64
			field   string
		}{
			{"/tape/**", -1, "from_global_seq"}, {"", -1, "from_global_seq"}, {"", int64(runstore.MaxPosition) + 1, "from_global_seq"}, {long, 0, "subject_pattern"},
		} {
			stream, err := subscribe(t.Context(), c, bad.pattern, bad.from)
			if err == nil {
				_, err = stream.Recv()
			}
			wantStatus(t, name, err, codes.InvalidArgument, bad.field)
			if got := infoOf(t, err).GetMetadata()["field"]; got != bad.field {
				t.Errorf("%s: the field is %q, want %s", name, got, bad.field)
			}
		}
		// A cursor that the store has never given out is from a store that has lost data.
		stream, err := subscribe(t.Context(), c, "", 1_000_000)
		if err == nil {
			_, err = stream.Recv()
		}
		wantStatus(t, name, err, codes.DataLoss, "")
		if info := infoOf(t, err); info.GetReason() != "STORE_BEHIND" || info.GetMetadata()["resume_from_global_seq"] != "" {
			t.Errorf("%s: %v", name, info)
		}
	}
	stream, err := c.SubscribeBySubject(t.Context(), &tapepb.SubscribeBySubjectRequest{PredicateCel: strings.Repeat(" ", 4097)})
	if err == nil {
		_, err = stream.Recv()
	}
	wantStatus(t, "predicate", err, codes.InvalidArgument, "predicate_cel")
}

// broken is a store that cannot read some events of the feed.
type broken struct {
	quiet
	run runstore.RunID // whose event at seq 2 is damaged
}

func (s broken) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	events, err := s.quiet.ReadFeed(ctx, q)
	events = slices.Clone(events)
	for i, e := range events {
		if e.Run == s.run && e.Seq == 2 {
			events[i] = runstore.FeedEvent{Run: e.Run, Err: &runstore.OpError{Op: "read feed", Run: e.Run, Err: runstore.ErrCorrupt}}
			events[i].Seq, events[i].Position = e.Seq, e.Position
		}
	}
	return events, err
}

// A feed ends at an entry that the store cannot read, and says where to resume behind it.
func TestFeedsEndAtDamage(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	writer, _ := start(t, store.Open(), nil)
	a, b := begin(t, writer, "a").GetRunId(), begin(t, writer, "b").GetRunId()
	decide(t, writer, a, 0)
	decide(t, writer, b, 0)
	c, _ := start(t, broken{quiet{store.Open()}, runstore.RunID(a)}, nil)
	for name, subscribe := range feeds {
		stream := opened(t)(subscribe(t.Context(), c, "/tape/**", 0))
		last := received(t, stream, 2)[1].GetGlobalSeq()
		_, err := stream.Recv()
		wantStatus(t, name, err, codes.DataLoss, fmt.Sprintf("resume from global_seq %d", last+1))
		info := infoOf(t, err)
		if info.GetReason() != "CORRUPT" || info.GetMetadata()["resume_from_global_seq"] != fmt.Sprint(last+1) {
			t.Errorf("%s: %v, want to resume behind the damaged entry", name, info)
		}
		stream = opened(t)(subscribe(t.Context(), c, "/tape/**", last+1))
		if got := received(t, stream, 1)[0]; got.GetRunId() != b || got.GetSeq() != 2 {
			t.Errorf("%s resumes with %v", name, got)
		}
	}
	stream := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{RunId: b}))
	if got := received(t, stream, 2); got[1].GetSeq() != 2 {
		t.Errorf("the damage in another run ends a subscription to run b: %v", got)
	}
}

func TestDrainEndsFeeds(t *testing.T) {
	t.Parallel()
	for name, subscribe := range feeds {
		c, stop := start(t, memory.New(nil).Open(), &tapeserver.Options{DrainTimeout: never})
		stream := opened(t)(subscribe(t.Context(), c, "", 0))
		if err := stop(); err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
		_, err := stream.Recv()
		wantStatus(t, name, err, codes.Unavailable, "shutting down")
	}
}
