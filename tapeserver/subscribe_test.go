package tapeserver_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestSubscribeRun(t *testing.T) { // 12, 13 without the kinds of later work
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id})
	if err != nil {
		t.Fatal(err)
	}
	recv := func() *tapepb.JournalEntry {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	entries := []*tapepb.JournalEntry{recv(), recv()}
	// From here on the stream waits for what is written.
	e, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, ToolName: "pay"})
	if err != nil {
		t.Fatal(err)
	}
	entries = append(entries, recv())
	if _, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: e.GetIdempotencyKey(), Status: confirmed}); err != nil {
		t.Fatal(err)
	}
	entries = append(entries, recv())
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	entries = append(entries, recv())
	wantKinds := []string{"run", "decision", "effect", "effect", "run"}
	wantSubjects := []string{
		"/tape/run/running/treasury/ana/s-1/" + id, "/tape/decision/recorded/" + id + "/0",
		"/tape/effect/pending/pay/" + id, "/tape/effect/confirmed/pay/" + id, "/tape/run/terminal/treasury/ana/s-1/" + id,
	}
	global := int64(0)
	for i, e := range entries {
		if e.GetSeq() != int64(i+1) || e.GetKind() != wantKinds[i] || e.GetSubject() != wantSubjects[i] ||
			e.GetSchemaVersion() != 1 || e.GetGlobalSeq() <= global || !fromNow(e.GetTsMs(), 0) {
			t.Errorf("entry %d = %v, want seq %d, kind %s, subject %s", i, e, i+1, wantKinds[i], wantSubjects[i])
		}
		global = e.GetGlobalSeq()
	}
	if tail := journal(t, c, id, 4, 2); tail[0].GetSeq() != 4 || tail[1].GetSeq() != 5 {
		t.Errorf("from 4: %v, want seqs 4 and 5", tail)
	}
}

// looked is a store that signals when a run's journal was read.
type looked struct {
	quiet
	at chan runstore.RunID
}

func (s looked) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	defer func() {
		select {
		case s.at <- id:
		default:
		}
	}()
	return s.quiet.ReadJournal(ctx, id, from, limit)
}

func TestStreamsStayOpen(t *testing.T) { // 12: neither an end nor a missing run ends a stream
	t.Parallel()
	store := looked{quiet{memory.New(nil).Open()}, make(chan runstore.RunID)}
	c, _ := start(t, store, nil)
	id := begin(t, c, "i").GetRunId()
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{id, "no-such-run"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := c.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: run, FromSeq: 3})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			ended <- err
		}()
		// The second look shows that the first, which found nothing more, did not end it.
		for looks := 0; looks < 2; {
			select {
			case at := <-store.at:
				if at == runstore.RunID(run) {
					looks++
				}
			case err := <-ended:
				t.Fatalf("%s: the stream ended with %v", run, err)
			}
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("%s: %v, want only its caller to end it", run, err)
		}
	}
}

func TestHeadersComeAtOnceAndARunMayBeginLater(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := "" // of the run that is to begin
	if r, err := client(t).BeginRun(t.Context(), beginRequest("later")); err != nil {
		t.Fatal(err)
	} else {
		id = r.GetRunId()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil { // blocks until they are there
		t.Fatal(err)
	}
	begin(t, c, "later")
	if e, err := stream.Recv(); err != nil || e.GetSeq() != 1 {
		t.Errorf("Recv = %v, %v, want the first entry", e, err)
	}
}

// quiet hides every optional capability of a store.
type quiet struct{ runstore.RunStore }

func TestStreamsPollAStoreWithoutANotifier(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	reader, _ := start(t, quiet{store.Open()}, nil)
	writer, _ := start(t, store.Open(), nil)
	id := begin(t, writer, "i").GetRunId()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reader.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id})
	if err != nil {
		t.Fatal(err)
	}
	for want := int64(1); want <= 2; want++ {
		e, err := stream.Recv()
		if err != nil || e.GetSeq() != want {
			t.Fatalf("Recv = %v, %v, want seq %d", e, err, want)
		}
		if _, err := writer.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLongJournalsArriveWhole(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	for i := range int64(600) {
		if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: i}); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range journal(t, c, id, 0, 601) {
		if e.GetSeq() != int64(i+1) {
			t.Fatalf("entry %d has seq %d", i, e.GetSeq())
		}
	}
}

func TestDrainEndsStreamsAndServe(t *testing.T) {
	t.Parallel()
	c, stop := start(t, memory.New(nil).Open(), &tapeserver.Options{DrainTimeout: never})
	stream, err := c.SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil { // hangs for the drain timeout if the stream does not end
		t.Errorf("Serve = %v, want nil", err)
	}
	_, err = stream.Recv() // a connection that is cut says UNAVAILABLE too, in other words
	wantStatus(t, "Recv", err, codes.Unavailable, "shutting down")
}
