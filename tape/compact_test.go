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

// record records n decisions with bodies.
func record(t *testing.T, tp *tape.Tape, run runstore.RunID, n int) {
	t.Helper()
	for i := range n {
		d := tape.Decision{Index: int64(i), Model: "m", Request: "req", Response: "resp", Rationale: "why", PolicyVersion: "p"}
		if _, err := tp.RecordDecision(t.Context(), run, d, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
}

// putEffect begins an effect with a request, and completes it unless its status is PENDING.
func putEffect(t *testing.T, tp *tape.Tape, run runstore.RunID, key string, s tape.EffectStatus) {
	t.Helper()
	_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{
		Run: run, CustomKey: key, Tool: "pay", Connector: "bank", Mode: tape.Outbox, Request: "request"})
	if err == nil && s != tape.EffectPending {
		_, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: key, Status: s, Response: "re", Error: "e"})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func putObligation(t *testing.T, s runstore.RunStore, run runstore.RunID, status int) {
	t.Helper()
	b := runstore.NewBatch(run, runstore.Unguarded("a test"))
	b.Put("obligation/x", fmt.Appendf(nil, "{\"v\":1,\"b\":[2,0],\"h\":{\"kind\":\"k\",\"status\":%d}}\n{}", status))
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, tp *tape.Tape, run runstore.RunID, s tape.RunStatus) {
	t.Helper()
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: run, Status: s, Detail: "detail"}); err != nil {
		t.Fatal(err)
	}
}

func compactable(t *testing.T, tp *tape.Tape) []runstore.RunID {
	t.Helper()
	runs, err := tp.ListCompactableRuns(t.Context(), runstore.EndOfTime, 0)
	if err != nil {
		t.Fatal(err)
	}
	ids := []runstore.RunID{}
	for _, r := range runs {
		ids = append(ids, r.ID)
	}
	return ids
}

func TestCompactRun(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	record(t, tp, r.ID, 1)
	if _, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{Index: 1, Rationale: "alone"}, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{Index: 2, Model: "no bodies"}, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	putEffect(t, tp, r.ID, "done", tape.EffectConfirmed)
	putEffect(t, tp, r.ID, "open", tape.EffectPending)
	end(t, tp, r.ID, tape.RunFailed)
	before, effects := historyOf(t, s, r.ID), map[string]tape.Effect{}
	for _, key := range []string{"done", "open"} {
		effects[key], _, _ = tp.GetEffect(t.Context(), r.ID, key)
	}
	ended, _ := tp.GetRun(t.Context(), r.ID)
	store.Advance(time.Hour)

	done, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{})
	want := tape.Compacted{Decisions: 2, Effects: 1, Bytes: 3 + 4 + 7 + 2 + 1}
	if err != nil || done != want {
		t.Errorf("CompactRun = %+v, %v, want %+v", done, err, want)
	}
	h := historyOf(t, s, r.ID)
	entry := h.events[len(h.events)-1]
	var at, decisions, zeroed, saved int64
	if _, err := fmt.Sscanf(string(entry.Data), `{"bytes_saved":%d,"compacted_at_ms":%d,"decisions_zeroed":%d,"effects_zeroed":%d,"run_id":"`+string(r.ID)+`"}`,
		&saved, &at, &decisions, &zeroed); err != nil || len(h.events) != len(before.events)+1 || entry.Kind != "run" ||
		saved != want.Bytes || decisions != 2 || zeroed != 1 || at < ended.EndedAt.Add(time.Hour).UnixMilli() || at > entry.Time.UnixMilli() {
		t.Errorf("entry = %s %s, %v", entry.Kind, entry.Data, err)
	}
	for i := range 3 {
		d, _, err := tp.GetDecision(t.Context(), r.ID, int64(i))
		if err != nil || d.Request+d.Response+d.Rationale != "" || i == 0 && (d.Model != "m" || d.PolicyVersion != "p" || d.Seq != 2) {
			t.Errorf("decision %d = %+v, %v, want it without bodies", i, d, err)
		}
	}
	for key, want := range effects {
		e, _, err := tp.GetEffect(t.Context(), r.ID, key)
		if key == "done" { // the other is still to be dispatched
			want.Request = ""
		}
		want.Response, want.Error, want.Time = "", "", e.Time
		if err != nil || e != want {
			t.Errorf("effect = %+v, %v, want %+v", e, err, want)
		}
	}
	// The PENDING effect stays in its queues where it was.
	for _, index := range []runstore.IndexName{tape.IndexPending, tape.IndexDispatch} {
		queued, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Limit: 10})
		if err != nil || len(queued) != 1 || !queued[0].At.Equal(effects["open"].Time) {
			t.Errorf("%s = %+v, %v, want the effect at %v", index, queued, err, effects["open"].Time)
		}
	}
	ended.LastSeq++
	if run, err := tp.GetRun(t.Context(), r.ID); err != nil || fmt.Sprint(run) != fmt.Sprint(ended) {
		t.Errorf("run = %+v, %v, want %+v", run, err, ended)
	}
	for range 2 { // also once it runs again
		if again, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil || again != (tape.Compacted{Already: true}) {
			t.Errorf("CompactRun again = %+v, %v, want already compacted", again, err)
		}
		if got := compactable(t, tp); len(got) != 0 {
			t.Errorf("compactable: %v, want none", got)
		}
		begin(t, tp, "i")
		end(t, tp, r.ID, tape.RunCancelled)
	}
}

// TestCompactionRules compacts runs in every status, with effects and obligations in every status.
func TestCompactionRules(t *testing.T) {
	t.Parallel()
	for status := range tape.RunStatus(10) {
		for _, effect := range []tape.EffectStatus{1, 2, 3, 4} {
			for obligation := range 5 {
				tp, s, _ := newTape(t)
				r := begin(t, tp, "i")
				putEffect(t, tp, r.ID, "e", effect)
				putObligation(t, s, r.ID, obligation)
				end(t, tp, r.ID, status)
				run, _ := tp.GetRun(t.Context(), r.ID)
				want := ""
				switch {
				case status != tape.RunTerminal && status != tape.RunFailed && status != tape.RunCancelled && status != tape.RunStuck:
					want = fmt.Sprintf("compact_run: run %s is not terminal (status=%d, ended_at_ms=%d); refuse to zero live state", r.ID, status, run.EndedAt.UnixMilli())
				case obligation == 1 || obligation == 2:
					want = fmt.Sprintf("compact_run: run %s has 1 open obligation(s); not settled", r.ID)
				case effect == tape.EffectUnknown:
					want = fmt.Sprintf("compact_run: run %s has 1 UNKNOWN effect(s); not settled", r.ID)
				}
				before := historyOf(t, s, r.ID)
				_, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{})
				if want == "" && err != nil || want != "" && (!errors.Is(err, tape.ErrRefused) || err.Error() != want) {
					t.Errorf("status %d, effect %d, obligation %d: %v, want %q", status, effect, obligation, err, want)
				}
				if after := historyOf(t, s, r.ID); want != "" && fmt.Sprint(after) != fmt.Sprint(before) {
					t.Errorf("status %d, effect %d, obligation %d: the refused call changed the run", status, effect, obligation)
				}
			}
		}
	}
	tp, s, _ := newTape(t)
	if _, err := tp.CompactRun(t.Context(), "none", runstore.Fence{}); !errors.Is(err, tape.ErrRefused) || err.Error() != "compact_run: run_id none not found" {
		t.Errorf("CompactRun of no run = %v", err)
	}
	r := begin(t, tp, "i")
	if _, err := tp.CompactRun(t.Context(), r.ID, r.Lease.Fence()); !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "(status=2, ended_at_ms=0)") {
		t.Errorf("CompactRun of a run that goes on = %v", err)
	}
	end(t, tp, r.ID, tape.RunFailed)
	if _, err := tp.CompactRun(t.Context(), r.ID, r.Lease.Fence()); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("CompactRun under an ended grant = %v, want ErrFenced", err)
	}
	if _, err := tape.New(s, &tape.Options{Fence: tape.FenceRequired}).CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil {
		t.Errorf("CompactRun where fences are required = %v, want no error", err)
	}
}

func TestListCompactableRuns(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	var ids []runstore.RunID
	for status := range tape.RunStatus(10) {
		r := begin(t, tp, fmt.Sprint(int(status)))
		store.Advance(time.Second)
		end(t, tp, r.ID, status)
		ids = append(ids, r.ID)
	}
	want := []runstore.RunID{ids[4], ids[5], ids[7], ids[8]}
	if got := compactable(t, tp); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("compactable: %v, want %v", got, want)
	}
	run, _ := tp.GetRun(t.Context(), ids[7])
	for _, c := range []struct {
		before time.Time
		limit  int
		want   int
	}{{time.Time{}, 0, 4}, {run.EndedAt, 0, 2}, {run.EndedAt.Add(time.Microsecond), 0, 3}, {time.UnixMilli(-1), 0, 0}, {time.Time{}, 3, 3}} {
		if got, err := tp.ListCompactableRuns(t.Context(), c.before, c.limit); err != nil || len(got) != c.want {
			t.Errorf("before %v: %d runs, %v, want %d", c.before, len(got), err, c.want)
		}
	}
	begin(t, tp, "5") // FAILED no more
	status := runstore.Status(tape.RunWaiting)
	for _, id := range []runstore.RunID{ids[4], ids[8]} {
		waiting := runstore.NewBatch(id, runstore.Unguarded("a test"))
		waiting.Status = &status
		if _, err := s.Commit(t.Context(), waiting); err != nil {
			t.Fatal(err)
		}
	}
	if got := compactable(t, tp); fmt.Sprint(got) != fmt.Sprint(want[2:3]) {
		t.Errorf("compactable: %v, want %v", got, want[2:3])
	}
	end(t, tp, ids[4], tape.RunCompensating)
	end(t, tp, ids[4], tape.RunFailed)
	if got := compactable(t, tp); fmt.Sprint(got) != fmt.Sprint([]runstore.RunID{ids[7], ids[4]}) {
		t.Errorf("compactable: %v, want the run that ended last behind", got)
	}
}

// TestACompactionCutAnywhereIsFinished cuts the compaction of a run that takes several commits behind
// each store call, and finishes it by each operation that does.
func TestACompactionCutAnywhereIsFinished(t *testing.T) {
	t.Parallel()
	const decisions = 520
	want := tape.Compacted{Decisions: decisions, Effects: 2, Bytes: 7*decisions + 7 + 2 + 1 + 7}
	for _, finisher := range []string{"CompactRun", "BeginRun", "EndRun"} {
		for n, whole := 0, false; !whole; n++ {
			tp, s, _ := newTape(t)
			r := begin(t, tp, "i")
			record(t, tp, r.ID, decisions)
			putEffect(t, tp, r.ID, "done", tape.EffectConfirmed)
			beginEffect(t, tp, tape.BeginEffectRequest{Run: r.ID, CustomKey: "open", Tool: "pay", Request: "request"})
			end(t, tp, r.ID, tape.RunFailed)
			got, err := tape.New(failing(s, n), nil).CompactRun(t.Context(), r.ID, runstore.Fence{})
			switch {
			case err == nil:
				if whole = true; got != want || n < 8 {
					t.Fatalf("%d calls: %+v, want %+v", n, got, want)
				}
			case !errors.Is(err, runstore.ErrUnavailable):
				t.Fatalf("cut after %d calls: %v", n, err)
			case len(compactable(t, tp)) != 1:
				t.Errorf("cut after %d calls: the run is not listed", n)
			}
			switch finisher {
			case "BeginRun":
				begin(t, tp, "i")
			case "EndRun":
				end(t, tp, r.ID, tape.RunCancelled)
			}
			begun := false
			for _, rec := range historyOf(t, s, r.ID).records {
				begun = begun || rec.Key == "compaction"
			}
			if finisher != "CompactRun" && !begun {
				end(t, tp, r.ID, tape.RunFailed) // nothing was begun that the finisher could finish
			}
			got, err = tp.CompactRun(t.Context(), r.ID, runstore.Fence{})
			if already := whole || finisher != "CompactRun" && begun; err != nil ||
				already && got != (tape.Compacted{Already: true}) || !already && got != want {
				t.Fatalf("cut after %d calls, finished by %s: %+v, %v, want %+v", n, finisher, got, err, want)
			}
			checkCompacted(t, tp, s, r.ID, want)
		}
	}
}

// checkCompacted checks that no bodies are left and that one entry has the counts.
func checkCompacted(t *testing.T, tp *tape.Tape, s runstore.RunStore, run runstore.RunID, want tape.Compacted) {
	t.Helper()
	counts := fmt.Sprintf(`"decisions_zeroed":%d,"effects_zeroed":%d,`, want.Decisions, want.Effects)
	h, told := historyOf(t, s, run), 0
	for _, e := range h.events {
		if strings.HasPrefix(string(e.Data), fmt.Sprintf(`{"bytes_saved":%d,`, want.Bytes)) && strings.Contains(string(e.Data), counts) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d entries tell the compaction, want 1", told)
	}
	for _, rec := range h.records {
		if strings.HasPrefix(string(rec.Key), "decision/") || strings.HasPrefix(string(rec.Key), "effect/") {
			if _, bodies, _ := strings.Cut(string(rec.Value), "\n"); bodies != "" {
				t.Errorf("%s has bodies: %q", rec.Key, bodies)
			}
		}
	}
	if got := compactable(t, tp); len(got) != 0 {
		t.Errorf("compactable: %v, want none", got)
	}
}

func TestALargeRunCompacts(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	r := begin(t, inner, "i")
	record(t, inner, r.ID, 1000)
	end(t, inner, r.ID, tape.RunTerminal)
	var mu sync.Mutex
	reports := 0
	var wg sync.WaitGroup
	want := tape.Compacted{Decisions: 1000, Bytes: 7000}
	for range 4 { // exactly one reports the counts
		wg.Go(func() {
			done, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{})
			if err != nil || done != want && done != (tape.Compacted{Already: true}) {
				t.Errorf("CompactRun = %+v, %v, want %+v or already compacted", done, err, want)
			}
			mu.Lock()
			defer mu.Unlock()
			if !done.Already {
				reports++
			}
		})
	}
	wg.Wait()
	if reports != 1 {
		t.Errorf("%d calls report the counts, want 1", reports)
	}
	checkCompacted(t, tp, s, r.ID, want)
}

// What is recorded after a compaction began keeps its bodies, as if it had been recorded after its end.
func TestLaterWritesKeepTheirBodies(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 3; n++ { // before the commit of the first batch, and before the last commit
		inner, s, _ := newTape(t)
		r := begin(t, inner, "i")
		record(t, inner, r.ID, 300)
		beginEffect(t, inner, tape.BeginEffectRequest{Run: r.ID, CustomKey: "open", Tool: "pay", Request: "request"})
		end(t, inner, r.ID, tape.RunFailed)
		tp := tape.New(ahead(s, "commit", n, func() {
			if _, err := inner.RecordDecision(t.Context(), r.ID, tape.Decision{Index: 900, Request: "later"}, runstore.Fence{}); err != nil {
				t.Error(err)
			}
			if _, err := inner.CompleteEffect(t.Context(), tape.OutcomeRequest{
				Run: r.ID, Key: "open", Status: tape.EffectUnknown, Response: "later"}); err != nil {
				t.Error(err)
			}
		}), nil)
		want := tape.Compacted{Decisions: 300, Effects: 1, Bytes: 2107}
		if done, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil || done != want {
			t.Errorf("CompactRun = %+v, %v, want %+v", done, err, want)
		}
		e, _, err := inner.GetEffect(t.Context(), r.ID, "open")
		if err != nil || e.Request != "" || e.Response != "later" || e.Status != tape.EffectUnknown {
			t.Errorf("effect = %+v, %v, want the later response alone", e, err)
		}
		if d, _, err := inner.GetDecision(t.Context(), r.ID, 900); err != nil || d.Request != "later" {
			t.Errorf("decision = %+v, %v, want its request", d, err)
		}
	}
}

// An outbox effect that becomes UNKNOWN during a compaction keeps its request: it may be dispatched again.
func TestCompactionKeepsTheRequestOfAnUnknownEffect(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	record(t, inner, r.ID, 300)
	beginEffect(t, inner, tape.BeginEffectRequest{Run: r.ID, CustomKey: "open", Tool: "pay", Mode: tape.Outbox, Request: "request"})
	end(t, inner, r.ID, tape.RunFailed)
	tp := tape.New(behind(s, "commit", 1, func() { // the compaction has begun
		if _, err := inner.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "open", Status: tape.EffectUnknown}); err != nil {
			t.Error(err)
		}
	}), nil)
	if _, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	if e, _, err := inner.GetEffect(t.Context(), r.ID, "open"); err != nil || e.Request != "request" || e.Status != tape.EffectUnknown {
		t.Errorf("effect = %+v, %v, want UNKNOWN with its request", e, err)
	}
}

// A transition between the settled check and the commit is seen: the check is made again.
func TestTheSettledCheckHoldsAtTheCommit(t *testing.T) {
	t.Parallel()
	for _, decisions := range []int{1, 300} {
		inner, s, _ := newTape(t)
		r := begin(t, inner, "i")
		record(t, inner, r.ID, decisions)
		putEffect(t, inner, r.ID, "open", tape.EffectPending)
		end(t, inner, r.ID, tape.RunFailed)
		tp := tape.New(ahead(s, "commit", 1, func() {
			if _, err := inner.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "open", Status: tape.EffectUnknown}); err != nil {
				t.Error(err)
			}
		}), nil)
		if _, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "UNKNOWN") {
			t.Errorf("CompactRun = %v, want it refused for the UNKNOWN effect", err)
		}
		begun := tape.New(ahead(s, "commit", 1, func() { begin(t, inner, "i") }), nil)
		if _, err := inner.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "open", Status: tape.EffectFailed}); err != nil {
			t.Fatal(err)
		}
		if _, err := begun.CompactRun(t.Context(), r.ID, runstore.Fence{}); !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "status=2") {
			t.Errorf("CompactRun = %v, want it refused for the run that goes on", err)
		}
	}
}

// A run changes its status and detail ahead of the last commit of its compaction, which writes the
// summary, too: both changes are kept.
func TestCompactionKeepsALaterSummary(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := begin(t, inner, "i")
	record(t, inner, r.ID, 300)
	end(t, inner, r.ID, tape.RunFailed)
	changed := false
	tp := tape.New(ahead(s, "commit", 3, func() { // the first begins, the second has 250 rows
		changed = true
		if _, err := inner.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunCompensating, Detail: "later"}); err != nil {
			t.Error(err)
		}
	}), nil)
	want := tape.Compacted{Decisions: 300, Bytes: 2100}
	if done, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil || done != want || !changed {
		t.Errorf("CompactRun = %+v, %v, want %+v; changed ahead of the third commit: %t", done, err, want, changed)
	}
	if run, err := inner.GetRun(t.Context(), r.ID); err != nil || run.Status != tape.RunCompensating || run.Detail != "later" {
		t.Errorf("run = %+v, %v, want the later status and detail", run, err)
	}
	checkCompacted(t, inner, s, r.ID, want)
}

// The outcome of an effect and a decision may be the last entries of a run that has ended: their bodies go,
// too.
func TestCompactionOfTheLastEntry(t *testing.T) {
	t.Parallel()
	for _, decisions := range []int{1, 300} { // one commit, and several
		for last, write := range map[string]func(tp *tape.Tape, run runstore.RunID) error{
			"outcome": func(tp *tape.Tape, run runstore.RunID) error {
				_, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "open", Status: tape.EffectConfirmed, Response: "last"})
				return err
			},
			"decision": func(tp *tape.Tape, run runstore.RunID) error {
				_, err := tp.RecordDecision(t.Context(), run, tape.Decision{Index: 900, Response: "last"}, runstore.Fence{})
				return err
			},
		} {
			tp, s, _ := newTape(t)
			r := begin(t, tp, "i")
			record(t, tp, r.ID, decisions)
			putEffect(t, tp, r.ID, "open", tape.EffectPending)
			end(t, tp, r.ID, tape.RunFailed)
			if err := write(tp, r.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil {
				t.Fatal(err)
			}
			for _, rec := range historyOf(t, s, r.ID).records {
				if strings.Contains(string(rec.Value), "last") {
					t.Errorf("%d decisions, then the %s: compacted, %s is %q", decisions, last, rec.Key, rec.Value)
				}
			}
		}
	}
}
