package protocol

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func feedCases() []Case {
	needs := []Need{NeedFeeds}
	return []Case{
		{Group: "feeds", Check: 59, Name: "all-entries", Needs: []Need{NeedFeeds, NeedValues}, Run: allEntries,
			Doc: "SubscribeBySubject of everything sends the entries of runs and values with subjects, in ascending global_seq above 0."},
		{Group: "feeds", Check: 60, Name: "pattern-and-predicate", Needs: needs, Run: patternAndPredicate,
			Doc: "SubscribeBySubject sends exactly the entries that match its pattern and its predicate, until the caller ends it; a faulty predicate selects nothing."},
		{Group: "feeds", Check: 61, Name: "relay", Needs: needs, Run: relay,
			Doc: "A relay that keeps the last number as its cursor, and reads in passes, gets each entry once, and existing entries without delay."},
		{Group: "feeds", Check: 62, Name: "kind", Needs: needs, Run: feedOfKind,
			Doc: "SubscribeEvents of a kind sends the entries of that kind, from the beginning on, each once."},
	}
}

// feed is a stream of the feed of all runs.
type feed struct {
	stream grpc.ServerStreamingClient[tapepb.EventEntry]
	cancel context.CancelFunc
	last   int64 // the number of the last entry
}

// opened returns the feed of a stream whose headers have arrived.
func opened(t T, cancel context.CancelFunc, stream grpc.ServerStreamingClient[tapepb.EventEntry], err error) *feed {
	t.Helper()
	require(t, err == nil, "open a feed: %v", err)
	_, err = stream.Header()
	require(t, err == nil, "open a feed: %v", err)
	return &feed{stream: stream, cancel: cancel}
}

// bySubject subscribes by subject. The caller cancels the feed.
func (p *Process) bySubject(t T, pattern, predicate string, from int64) *feed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	stream, err := p.Try.SubscribeBySubject(ctx, &tapepb.SubscribeBySubjectRequest{SubjectPattern: pattern, PredicateCel: predicate, FromGlobalSeq: from})
	f := opened(t, cancel, stream, err)
	f.last = from
	return f
}

// events subscribes to events. The caller cancels the feed.
func (p *Process) events(t T, req *tapepb.SubscribeEventsRequest) *feed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	stream, err := p.Try.SubscribeEvents(ctx, req)
	return opened(t, cancel, stream, err)
}

// next returns the next entry that satisfies wanted, and checks all entries up to it.
func (f *feed) next(t T, wanted func(*tapepb.EventEntry) bool) *tapepb.EventEntry {
	t.Helper()
	for {
		e, err := f.stream.Recv()
		require(t, err == nil, "behind %d the feed ends with %v", f.last, err)
		require(t, e.GetGlobalSeq() > f.last && e.GetGlobalSeq() < 1<<53, "behind %d the feed sends %d", f.last, e.GetGlobalSeq())
		expect(t, strings.HasPrefix(e.GetSubject(), "/tape/") && e.GetSchemaVersion() == 1 && e.GetTsMs() > 0,
			"an entry has a subject that is not below /tape, no time, or another schema version than 1: %v", e)
		f.last = e.GetGlobalSeq()
		if wanted(e) {
			return e
		}
	}
}

func ofRun(id string) func(*tapepb.EventEntry) bool {
	return func(e *tapepb.EventEntry) bool { return e.GetRunId() == id }
}

func allEntries(t T, e *Env) {
	id := e.begin(t)
	e.decide(t, id, 0)
	e.mustWrite(t, "k", "1", -1)
	f := e.bySubject(t, "/tape/**", "", 0)
	defer f.cancel()
	ns := e.Name("ns")
	seen := map[string]*tapepb.EventEntry{}
	own := func(entry *tapepb.EventEntry) bool {
		return entry.GetRunId() == id || strings.HasPrefix(entry.GetSubject(), "/tape/value/changed/"+ns+"/")
	}
	for len(seen) < 3 {
		entry := f.next(t, own)
		require(t, seen[entry.GetKind()] == nil, "an entry comes twice: %v", entry)
		seen[entry.GetKind()] = entry
	}
	run, decision, value := seen["run"], seen["decision"], seen["value"]
	expect(t, run.GetSubject() == fmt.Sprintf("/tape/run/running/%s/ana/s/%s", e.Name("app"), id) && run.GetSeq() == 1, "the entry of the run is %v", run)
	expect(t, decision.GetSubject() == "/tape/decision/recorded/"+id+"/0" && object(t, decision.GetPayloadJson())["model"] == "m", "the entry of the decision is %v", decision)
	expect(t, value.GetSubject() == "/tape/value/changed/"+ns+"/k" && value.GetRunId() == "" && value.GetSeq() > 0, "the entry of the value is %v", value)
}

func patternAndPredicate(t T, e *Env) {
	a, b := e.begin(t), e.Begin(t, e.Process, "b").GetRunId()
	e.decide(t, a, 0)
	e.decide(t, b, 0)
	f := e.bySubject(t, "/tape/decision/recorded/"+a+"/**", "", 0)
	defer f.cancel()
	second := e.bySubject(t, "/tape/*/recorded/"+a+"/*", "payload.decision_index == 1", 0)
	defer second.cancel()
	faulty := e.bySubject(t, "/tape/decision/recorded/"+a+"/**", "payload.decision_index ==", 0)
	defer faulty.cancel()
	every := func(*tapepb.EventEntry) bool { return true }
	if first := f.next(t, every); first.GetRunId() != a || first.GetSubject() != "/tape/decision/recorded/"+a+"/0" {
		t.Errorf("the first entry is %v", first)
	}
	e.decide(t, b, 1)
	e.decide(t, a, 1) // if it comes next, nothing came in between
	for name, f := range map[string]*feed{"pattern": f, "predicate": second} {
		if entry := f.next(t, every); entry.GetSubject() != "/tape/decision/recorded/"+a+"/1" {
			t.Errorf("the next entry by %s is %v", name, entry)
		}
		f.cancel()
		_, err := f.stream.Recv()
		expect(t, status.Code(err) == codes.Canceled, "the feed ends with %v before its caller ends it", err)
	}
	faulty.cancel()
	entry, err := faulty.stream.Recv()
	expect(t, status.Code(err) == codes.Canceled, "a predicate with a syntax error: the feed sends %v, %v", entry, err)
}

func relay(t T, e *Env) {
	for name, open := range map[string]func(from int64) *feed{
		"SubscribeBySubject": func(from int64) *feed { return e.bySubject(t, "/tape/**", "", from) },
		"SubscribeEvents": func(from int64) *feed {
			f := e.events(t, &tapepb.SubscribeEventsRequest{FromGlobalSeq: from, SubjectPattern: "/tape/**", RunId: "ignored", Kind: "ignored"})
			f.last = from
			return f
		},
	} {
		cursor, index := int64(0), int64(0)
		id := e.Begin(t, e.Process, name).GetRunId()
		seen := map[int64]bool{}
		// pass reads from the cursor up to a mark, and returns the number of entries before it. The
		// mark is a decision of the same run, because entries of different runs may arrive in
		// another order than they were committed in.
		pass := func() (n int) {
			t.Helper()
			index++
			mark, err := e.Try.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: index})
			require(t, err == nil, "RecordDecision: %v", err)
			f := open(cursor)
			defer f.cancel()
			for {
				entry := f.next(t, ofRun(id))
				cursor = entry.GetGlobalSeq()
				require(t, !seen[entry.GetSeq()], "%s: entry %d of run %s comes twice", name, entry.GetSeq(), id)
				seen[entry.GetSeq()] = true
				if entry.GetSeq() == mark.GetSeq() {
					return n
				}
				n++
			}
		}
		e.decide(t, id, 0)
		effect := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, ToolName: "pay", Scope: "pay"})
		e.complete(t, id, effect.GetIdempotencyKey(), confirmed, "1")
		expect(t, pass() == 4, "%s: the first pass does not have the run's 4 entries, but %v", name, seen)
		expect(t, pass() == 0, "%s: the second pass has entries", name)
		_, _ = e.Client.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: effect.GetIdempotencyKey(), Kind: "undo"})
		expect(t, pass() == 1, "%s: the pass after one registration does not have one entry", name)
	}
}

func feedOfKind(t T, e *Env) {
	f := e.events(t, &tapepb.SubscribeEventsRequest{Kind: "obligation"})
	defer f.cancel()
	id := e.begin(t)
	o, _ := e.Client.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "K", Kind: "undo"})
	var got *tapepb.EventEntry
	f.next(t, func(entry *tapepb.EventEntry) bool {
		require(t, entry.GetKind() == "obligation", "the feed of obligations sends %v", entry)
		got = entry
		return entry.GetRunId() == id
	})
	expect(t, got.GetSeq() == o.GetSeq() && got.GetSubject() == "/tape/obligation/pending/undo/"+id, "the entry of the registration is %v", got)
	both := e.events(t, &tapepb.SubscribeEventsRequest{Kind: "obligation", RunId: id, FromTsMs: got.GetTsMs()})
	defer both.cancel()
	_, _ = e.Client.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: o.GetSeq(), Claimer: "c"})
	for _, want := range []string{"pending", "committed"} {
		entry := both.next(t, ofRun(id))
		expect(t, entry.GetSubject() == "/tape/obligation/"+want+"/undo/"+id, "from the registration's time on the feed of the run sends %v, want it to be %s", entry, want)
	}
}
