package tapeserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// purge purges a run, as tapestore retain does.
func purge(t *testing.T, store runstore.RunStore, id string) {
	t.Helper()
	b := runstore.NewBatch(runstore.RunID(id), runstore.Unguarded("a test"))
	b.Purge = true
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// TestFeedsOfTenants reads the feeds as a limited principal from every position on: each subscriber gets
// the entries of its tenants, each once and in order, whatever it has seen before.
func TestFeedsOfTenants(t *testing.T) {
	t.Parallel()
	for name, subscribe := range feeds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check, _ := checker(t, "some read a c", "all operate")
			c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check})
			all := as(t.Context(), "all")
			ids, own := []string{}, map[string]bool{}
			for i, tenant := range []string{"a", "b", "", "c"} {
				r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: fmt.Sprint(i), TenantId: tenant})
				if err != nil {
					t.Fatal(err)
				}
				ids, own[r.GetRunId()] = append(ids, r.GetRunId()), tenant == "a" || tenant == "c"
			}
			for i := range 24 {
				if _, err := c.RecordDecision(all, &tapepb.RecordDecisionRequest{RunId: ids[i*7%4], DecisionIndex: int64(i)}); err != nil {
					t.Fatal(err)
				}
				if _, err := c.WriteValue(all, &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: fmt.Sprint(i), IfVersion: -1}); err != nil {
					t.Fatal(err)
				}
			}
			whole := received(t, opened(t)(subscribe(all, c, "/tape/**", 0)), 4+48)
			for from := range len(whole) {
				after := int64(0)
				if from > 0 {
					after = whole[from-1].GetGlobalSeq()
				}
				var want []int64
				for _, e := range whole[from:] {
					if own[e.GetRunId()] {
						want = append(want, e.GetGlobalSeq())
					}
				}
				stream := opened(t)(subscribe(as(t.Context(), "some"), c, "/tape/**", after))
				r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: fmt.Sprint("late", name, from), TenantId: "a"})
				if err != nil {
					t.Fatal(err)
				}
				var got []int64
				for _, e := range received(t, stream, len(want)) {
					got = append(got, e.GetGlobalSeq())
				}
				if !slices.Equal(got, want) {
					t.Fatalf("after %d: entries %v, want %v", after, got, want)
				}
				for { // those that were begun before for this test
					e := received(t, stream, 1)[0]
					own[e.GetRunId()] = own[e.GetRunId()] || e.GetGlobalSeq() > whole[len(whole)-1].GetGlobalSeq()
					if !own[e.GetRunId()] {
						t.Fatalf("after %d: an entry of another tenant: %v", after, e)
					}
					if e.GetRunId() == r.GetRunId() {
						break
					}
				}
			}
		})
	}
}

// TestStreamsOfPurgedRuns: a run is purged and begun again by another tenant. The streams of the former
// tenant, old and new ones, get nothing of the later run, and those of the later tenant nothing of the former.
func TestStreamsOfPurgedRuns(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a read a", "b read b", "all operate")
	store := memory.New(nil).Open()
	c, _ := startAuth(t, store, &tapeserver.Options{Auth: check})
	all := as(t.Context(), "all")
	begin := func(invocation, tenant string) string {
		t.Helper()
		r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: invocation, TenantId: tenant})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetRunId()
	}
	decided := func(id string, n int) {
		t.Helper()
		for i := range n {
			if _, err := c.RecordDecision(all, &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: int64(i), Model: "m"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	id := begin("i", "a")
	decided(id, 3)
	feedA := opened(t)(feeds["SubscribeEvents"](as(t.Context(), "a"), c, "/tape/**", 0))
	late, err := c.SubscribeEvents(as(t.Context(), "a"), &tapepb.SubscribeEventsRequest{Kind: "decision"}) // does not see how runs begin
	lateA := opened(t)(late, err)
	feedB := opened(t)(feeds["SubscribeEvents"](as(t.Context(), "b"), c, "/tape/**", 0))
	run, err := c.SubscribeRun(as(t.Context(), "a"), &tapepb.SubscribeRunRequest{RunId: id})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if e, err := run.Recv(); err != nil || e.GetSeq() != int64(i+1) {
			t.Fatalf("the run's stream: %v, %v", e, err)
		}
	}
	received(t, feedA, 4)
	received(t, lateA, 3)
	purge(t, store, id)
	time.Sleep(2 * time.Millisecond) // the later run begins later
	if begin("i", "b") != id {
		t.Fatal("the later run has another id")
	}
	decided(id, 8)
	if e, err := run.Recv(); err == nil {
		t.Errorf("the stream of the purged run has an entry of the later run: %v", e)
	} else {
		wantStatus(t, "the stream of the purged run", err, codes.PermissionDenied, "no such run")
	}
	for i, e := range received(t, feedB, 9) {
		if e.GetRunId() != id || e.GetSeq() != int64(i+1) {
			t.Errorf("entry %d of the later tenant: %v", i, e)
		}
	}
	next := begin("next", "a")
	decided(next, 1)
	if e := received(t, feedA, 1)[0]; e.GetRunId() != next {
		t.Errorf("the former tenant got %v", e)
	}
	if e := received(t, lateA, 1)[0]; e.GetRunId() != next {
		t.Errorf("the former tenant got %v", e)
	}
}

// TestShortPages: a page looks at a bounded number of entries, so a tenant behind a long queue of others
// gets empty pages with a token first.
func TestShortPages(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a drive a", "all operate")
	store := memory.New(nil).Open()
	tapes := tape.New(store, nil)
	for i := range 4001 {
		key := tape.RunKey{App: "app", Invocation: fmt.Sprint(i)}
		r, err := tapes.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, TTL: time.Hour, Identity: tape.Identity{Tenant: "other"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tapes.SetTimer(t.Context(), tape.Timer{Run: r.ID, ID: "t", FireAtMS: 1}, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	c, _ := startAuth(t, store, &tapeserver.Options{Auth: check})
	own, err := c.BeginRun(as(t.Context(), "a"), &tapepb.BeginRunRequest{AppName: "app", InvocationId: "own", TenantId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetTimer(as(t.Context(), "a"), &tapepb.SetTimerRequest{RunId: own.GetRunId(), TimerId: "t", FireAtMs: 2}); err != nil {
		t.Fatal(err)
	}
	first, err := c.ListDueTimers(as(t.Context(), "a"), &tapepb.ListDueTimersRequest{Claim: true})
	if err != nil || len(first.GetTimers()) > 0 || first.GetNextPageToken() == "" {
		t.Fatalf("the first page: %v, %v", first, err)
	}
	second, err := c.ListDueTimers(as(t.Context(), "a"), &tapepb.ListDueTimersRequest{Claim: true, PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetTimers()) != 1 || second.GetTimers()[0].GetRunId() != own.GetRunId() || second.GetNextPageToken() != "" {
		t.Fatalf("the second page: %v, %v", second, err)
	}
	rest, err := tapes.ListDueTimers(t.Context(), tape.DueTimersQuery{Limit: 5000})
	if err != nil || len(rest) != 4001 {
		t.Errorf("%d timers of others are due, %v; want 4001: a claim fires the principal's only", len(rest), err)
	}
}

// TestPagesThatAreFull: an entry that does not fit into a page is the first of the next.
func TestPagesThatAreFull(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a operate a", "all operate")
	c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check})
	var want, got []string
	for i := range 5 {
		for _, tenant := range []string{"a", "b"} {
			r, err := c.BeginRun(as(t.Context(), "all"), &tapepb.BeginRunRequest{AppName: "app", InvocationId: fmt.Sprint(tenant, i), TenantId: tenant})
			if err != nil {
				t.Fatal(err)
			}
			if tenant == "a" {
				want = append(want, r.GetRunId())
			}
			_, err = c.BeginEffect(as(t.Context(), "all"), &tapepb.BeginEffectRequest{RunId: r.GetRunId(), CustomKey: "k", RequestJson: strings.Repeat("x", 1_500_000)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.SetTimer(as(t.Context(), "all"), &tapepb.SetTimerRequest{RunId: r.GetRunId(), TimerId: "t", FireAtMs: 1, PayloadJson: strings.Repeat("x", 900_000)})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	a := as(t.Context(), "a")
	lists := map[string]func(token string) (next string){
		"ListPendingEffects": func(token string) string {
			r, err := c.ListPendingEffects(a, &tapepb.ListPendingEffectsRequest{PageToken: token})
			if err != nil || len(r.GetEffects()) > 2 {
				t.Fatal(len(r.GetEffects()), err)
			}
			for _, e := range r.GetEffects() {
				got = append(got, e.GetRunId())
			}
			return r.GetNextPageToken()
		},
		"ListDueTimers": func(token string) string {
			r, err := c.ListDueTimers(a, &tapepb.ListDueTimersRequest{PageToken: token, Claim: true})
			if err != nil || len(r.GetTimers()) > 4 {
				t.Fatal(len(r.GetTimers()), err)
			}
			for _, e := range r.GetTimers() {
				got = append(got, e.GetRunId())
			}
			return r.GetNextPageToken()
		},
	}
	for name, list := range lists {
		got = nil
		pages := 1
		for next := list(""); next != ""; next = list(next) {
			pages++
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) || pages < 2 {
			t.Errorf("%s: runs %v in %d pages, want %v", name, got, pages, want)
		}
	}
}
