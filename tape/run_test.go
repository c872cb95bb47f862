package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestRunIDIsAUUIDOfTheWholeKey(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[runstore.RunID]tape.RunKey{}
	for _, k := range []tape.RunKey{
		{}, {App: "a"}, {User: "a"}, {Session: "a"}, {Invocation: "a"}, {App: "ab", User: "c"}, {App: "a", User: "bc"},
		{App: "a\x00", User: "b"}, {App: "a", User: "\x00b"}, {App: "ä", User: "b"},
	} {
		id := k.ID()
		if !form.MatchString(string(id)) {
			t.Errorf("ID of %+v = %s, want a UUID of version 4", k, id)
		}
		if other, dup := seen[id]; dup {
			t.Errorf("%+v and %+v have one ID", k, other)
		}
		seen[id] = k
	}
	// A run must be found again by every later version.
	k := tape.RunKey{App: "app", User: "user", Session: "session", Invocation: "invocation"}
	if got, want := k.ID(), runstore.RunID("37e98e4f-673c-492d-944c-e717ff17dc4f"); got != want {
		t.Errorf("ID = %s, want %s for ever", got, want)
	}
}

func TestBeginRunCreatesRunLeaseAndEntryTogether(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	if r.Resumed || r.LastSeq != 0 || r.Status != tape.RunRunning || r.Lease.Token != 1 || r.Lease.Grant == "" {
		t.Errorf("BeginRun = %+v, want a fresh RUNNING run under token 1", r)
	}
	run, err := tp.GetRun(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	req := beginRequest("i")
	if run.RunKey != req.Key || !reflect.DeepEqual(run.Identity, req.Identity) {
		t.Errorf("GetRun = %+v, want key %+v and identity %+v", run, req.Key, req.Identity)
	}
	if run.LastSeq != 1 || run.LeaseOwner != "worker-a" || !run.LeaseExpiresAt.Equal(run.StartedAt.Add(time.Minute)) || !run.EndedAt.IsZero() {
		t.Errorf("GetRun = %+v, want seq 1, owner worker-a, a minute's lease and no end", run)
	}
	h := historyOf(t, s, r.ID)
	want := fmt.Sprintf(`{"actor":"","agent_id":"","aiplex_instance_id":"","app":"treasury","invocation_id":"i",`+
		`"run_id":"%s","session":"s-1","status":"running","subject":"","tenant_id":"","user":"ana"}`, r.ID)
	if len(h.events) != 1 || string(h.events[0].Data) != want || h.events[0].Token != 1 {
		t.Errorf("journal = %+v, want one entry %s under token 1", h.events, want)
	}
}

func TestBeginRunAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ended tape.RunStatus
		want  tape.RunStatus
		lease bool
	}{
		{tape.RunTerminal, tape.RunTerminal, false},
		{tape.RunStuck, tape.RunStuck, false},
		{tape.RunFailed, tape.RunRunning, true},
		{tape.RunCancelled, tape.RunRunning, true},
		{tape.RunCompensating, tape.RunRunning, true},
		{tape.RunWaiting, tape.RunRunning, true},
		{tape.RunRunnable, tape.RunRunning, true},
		{99, tape.RunRunning, true},
	} {
		t.Run(fmt.Sprint(c.ended), func(t *testing.T) {
			t.Parallel()
			tp, _, _ := newTape(t)
			first := begin(t, tp, "i")
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: first.ID, Status: c.ended}); err != nil {
				t.Fatal(err)
			}
			again := begin(t, tp, "i")
			if again.ID != first.ID || !again.Resumed || again.Status != c.want || again.LastSeq != 2 || (again.Lease.Token != 0) != c.lease {
				t.Errorf("BeginRun again = %+v, want %v, lease %v", again, c.want, c.lease)
			}
			if run, err := tp.GetRun(t.Context(), first.ID); err != nil || run.Status != c.want || run.EndedAt.IsZero() {
				t.Errorf("GetRun = %+v, %v, want status %v and the old end", run, err, c.want)
			}
		})
	}
}

func TestBeginRunTakesALiveLeaseAndSaysWhy(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	first := begin(t, tp, "i")
	req := beginRequest("i")
	req.Owner = "worker-b"
	second, err := tp.BeginRun(t.Context(), req)
	if err != nil || !second.Resumed || second.Lease.Token != first.Lease.Token+1 {
		t.Fatalf("BeginRun = %+v, %v, want resumed under the next token", second, err)
	}
	head, err := s.GetRun(t.Context(), first.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := runstore.Preempted{From: "worker-a", Reason: "begin run by worker-b"}
	if head.Holder.Owner != "worker-b" || head.Holder.Preempted != want || head.LastSeq != 1 {
		t.Errorf("holder = %+v, last seq %d; want worker-b who preempted %+v, nothing journaled", head.Holder, head.LastSeq, want)
	}
}

func TestBeginRunRacesCreateOneRun(t *testing.T) {
	t.Parallel()
	_, _, store := newTape(t)
	const n = 16
	results := make([]tape.BeginRunResult, n)
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		tp := tape.New(store.Open(), nil)
		wg.Go(func() {
			<-start
			results[i], errs[i] = tp.BeginRun(t.Context(), beginRequest("i"))
		})
	}
	close(start)
	wg.Wait()
	fresh, tokens := 0, map[runstore.Token]bool{}
	for i, r := range results {
		if errs[i] != nil {
			t.Errorf("BeginRun: %v", errs[i])
		}
		if !r.Resumed {
			fresh++
		}
		tokens[r.Lease.Token] = true
	}
	if fresh != 1 || len(tokens) != n {
		t.Errorf("%d fresh runs and %d tokens, want 1 and %d", fresh, len(tokens), n)
	}
}

func TestBeginRunDoesNotReviveARunThatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	first := begin(t, tp, "i")
	slow := tape.New(ahead(s, "acquire", 1, func() {
		if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: first.ID, Status: tape.RunTerminal}); err != nil {
			t.Error(err)
		}
	}), nil)
	r, err := slow.BeginRun(t.Context(), beginRequest("i"))
	if err != nil || r.Status != tape.RunTerminal || r.Lease.Token != 0 || r.LastSeq != 2 {
		t.Errorf("BeginRun = %+v, %v, want the run TERMINAL and no lease", r, err)
	}
}

func TestResumeRun(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	first := begin(t, tp, "i")
	run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: first.ID, TTL: time.Minute})
	if err != nil || run.Status != tape.RunRunning || run.LeaseOwner != "" || lease.Token != 2 || run.LastSeq != 1 {
		t.Fatalf("ResumeRun = %+v, %+v, %v; want RUNNING under token 2, no entry", run, lease, err)
	}
	store.Advance(30 * time.Second)
	beat := tape.ResumeRunRequest{Run: first.ID, Owner: "any", TTL: time.Minute, Fence: lease.Fence()}
	run, renewed, err := tp.ResumeRun(t.Context(), beat)
	if err != nil || renewed.Token != 2 || renewed.Grant != lease.Grant || !run.LeaseExpiresAt.After(lease.ExpiresAt) {
		t.Errorf("heartbeat = %+v, %+v, %v; want the same grant and a later expiry", run, renewed, err)
	}
	if _, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: first.ID, Owner: "worker-b", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	before := historyOf(t, s, first.ID)
	if _, _, err := tp.ResumeRun(t.Context(), beat); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("heartbeat after a takeover = %v, want ErrFenced", err)
	}
	if after := historyOf(t, s, first.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("the refused heartbeat changed %+v to %+v", before, after)
	}
}

func TestHeartbeatSetsTheStatusBack(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	b := runstore.NewBatch(r.ID, runstore.InStatus(runstore.Status(tape.RunRunning)))
	failed := runstore.Status(tape.RunFailed)
	b.Status, b.Runnable = &failed, runstore.Never()
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	run, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Fence: r.Lease.Fence()})
	head, _ := s.GetRun(t.Context(), r.ID)
	if err != nil || run.Status != tape.RunRunning || head.Status != runstore.Status(tape.RunRunning) || head.RunnableAt.IsZero() {
		t.Errorf("ResumeRun = %+v, %v; head %+v; want RUNNING and runnable", run, err, head)
	}
}

func TestEndRunIsOneStep(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	store.Advance(time.Second)
	ended, err := tp.EndRun(t.Context(), tape.EndRunRequest{
		Run: r.ID, Status: tape.RunTerminal, Detail: `{"ok":"<ä>"}`, Fence: r.Lease.Fence(),
	})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := tp.GetRun(t.Context(), r.ID)
	if err != nil || !reflect.DeepEqual(ended, stored) {
		t.Errorf("EndRun = %+v, GetRun = %+v, %v; want the same", ended, stored, err)
	}
	h := historyOf(t, s, r.ID)
	last := h.events[len(h.events)-1]
	want := fmt.Sprintf(`{"app":"treasury","run_id":"%s","session":"s-1","status":"terminal","user":"ana"}`, r.ID)
	if string(last.Data) != want || last.Token != 1 {
		t.Errorf("last entry = %s under token %v, want %s under 1", last.Data, last.Token, want)
	}
	if stored.Status != tape.RunTerminal || stored.LeaseOwner != "" || !stored.EndedAt.Equal(last.Time) ||
		!stored.LeaseExpiresAt.Equal(r.Lease.ExpiresAt) || stored.Detail != `{"ok":"<ä>"}` || h.run.Holder.Token != 0 || !h.run.RunnableAt.IsZero() {
		t.Errorf("run = %+v, head %+v; want ended by that entry, released, never runnable, expiry kept", stored, h.run)
	}
	// Ending again journals again, and may change the status.
	again, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: 42})
	if err != nil || again.LastSeq != 3 || again.Status != 42 || again.Detail != "" {
		t.Errorf("EndRun again = %+v, %v; want seq 3 and status 42", again, err)
	}
	if h := historyOf(t, s, r.ID); !strings.Contains(string(h.events[2].Data), `"status":"ended"`) {
		t.Errorf("entry = %s, want status ended", h.events[2].Data)
	}
}

func TestConcurrentEndsAllCount(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed}); err != nil {
				t.Errorf("EndRun: %v", err)
			}
		})
	}
	wg.Wait()
	if h := historyOf(t, s, r.ID); len(h.events) != 9 {
		t.Errorf("%d entries, want 9", len(h.events))
	}
}

func TestUnknownRun(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "not-tape"}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []runstore.RunID{"no-such-run-id", "not-tape"} {
		_, getErr := tp.GetRun(t.Context(), id)
		_, endErr := tp.EndRun(t.Context(), tape.EndRunRequest{Run: id, Status: tape.RunTerminal})
		for op, err := range map[string]error{"GetRun": getErr, "EndRun": endErr} {
			if !errors.Is(err, tape.ErrNoSuchRun) {
				t.Errorf("%s(%s) = %v, want ErrNoSuchRun", op, id, err)
			}
		}
	}
	if _, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: "no-such-run-id"}); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("ResumeRun = %v, want ErrNoSuchRun", err)
	}
	entries, err := tp.ReadJournal(t.Context(), "no-such-run-id", 0, 10)
	if err != nil || len(entries) != 0 {
		t.Errorf("ReadJournal = %v, %v, want nothing", entries, err)
	}
}

func TestListRunsToRecover(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "not-tape", Runnable: runstore.After(0)}); err != nil {
		t.Fatal(err)
	}
	live := begin(t, tp, "live")
	parked := begin(t, tp, "parked")
	for id, status := range map[runstore.RunID]tape.RunStatus{
		parked.ID: tape.RunWaiting, begin(t, tp, "failed").ID: tape.RunFailed, begin(t, tp, "cancelled").ID: tape.RunCancelled,
	} {
		if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: id, Status: status}); err != nil {
			t.Fatal(err)
		}
	}
	expiry := live.Lease.ExpiresAt.Truncate(time.Millisecond)
	list := func(now time.Time) (ids []runstore.RunID) {
		t.Helper()
		runs, err := tp.ListRunsToRecover(t.Context(), now, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			ids = append(ids, r.ID)
		}
		return ids
	}
	for _, c := range []struct {
		name string
		now  time.Time
		want []runstore.RunID
	}{
		{"store clock, lease live", time.Time{}, nil},
		{"at expiry", expiry, nil},
		{"after expiry", expiry.Add(time.Millisecond), []runstore.RunID{live.ID}},
		{"far future", time.UnixMilli(1 << 62), []runstore.RunID{live.ID}},
		{"before all times", time.UnixMilli(-1), nil},
	} {
		if got := list(c.now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	store.Advance(2 * time.Minute)
	if got := list(time.Time{}); !slices.Equal(got, []runstore.RunID{live.ID}) {
		t.Errorf("store clock, lease over: %v, want the run", got)
	}
}
