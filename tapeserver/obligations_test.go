package tapeserver_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	obligationPending     = tapepb.ObligationStatus_OBLIGATION_STATUS_PENDING
	obligationCommitted   = tapepb.ObligationStatus_OBLIGATION_STATUS_COMMITTED
	obligationCompensated = tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED
	obligationStuck       = tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK
)

// ledgerClient serves a store whose clock the test moves, and returns the time on that clock in
// milliseconds.
func ledgerClient(t *testing.T) (c tapepb.TapeClient, store *memory.Store, now func() int64) {
	t.Helper()
	store = memory.New(nil)
	c, _ = start(t, store.Open(), nil)
	s := store.Open()
	return c, store, func() int64 {
		at, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at.UnixMilli()
	}
}

func registerObligation(t *testing.T, c tapepb.TapeClient, id, key string, maxAttempts int32) *tapepb.ObligationRecord {
	t.Helper()
	o, err := c.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{
		RunId: id, EffectKey: key, Kind: "reverse_wire", PayloadJson: "{\"a\": 1}\n", CompensatorRef: "m:f", MaxAttempts: maxAttempts,
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func claimObligation(t *testing.T, c tapepb.TapeClient, o *tapepb.ObligationRecord, claimer string, ttlMS int64) *tapepb.ClaimObligationResponse {
	t.Helper()
	r, err := c.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Claimer: claimer, LeaseTtlMs: ttlMS})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func attemptObligation(t *testing.T, c tapepb.TapeClient, o *tapepb.ObligationRecord, failure string, nextMS int64) *tapepb.ObligationRecord {
	t.Helper()
	o, err := c.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Error: failure, NextAttemptAtMs: nextMS})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func listObligations(t *testing.T, c tapepb.TapeClient, req *tapepb.ListObligationsRequest) string {
	t.Helper()
	l, err := c.ListObligations(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return effectKeys(l.GetObligations())
}

func effectKeys(obligations []*tapepb.ObligationRecord) string {
	var keys []string
	for _, o := range obligations {
		keys = append(keys, o.GetEffectKey())
	}
	return strings.Join(keys, " ")
}

func TestRegisterCompensation(t *testing.T) { // 41
	t.Parallel()
	c, _, _ := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	first := registerObligation(t, c, id, "E", 0)
	want := &tapepb.ObligationRecord{
		RunId: id, Seq: 2, EffectKey: "E", Kind: "reverse_wire", PayloadJson: "{\"a\": 1}\n", CompensatorRef: "m:f",
		Status: obligationPending, MaxAttempts: 5, TsMs: first.GetTsMs(), NextAttemptAtMs: first.GetTsMs(),
	}
	if !proto.Equal(first, want) || first.GetTsMs() <= 0 {
		t.Errorf("RegisterCompensation = %v, want %v", first, want)
	}
	if again := registerObligation(t, c, id, "E", 9); !proto.Equal(again, first) {
		t.Errorf("RegisterCompensation again = %v, want %v", again, first)
	}
	entry := journal(t, c, id, 2, 1)[0]
	if entry.GetKind() != "obligation" || entry.GetSubject() != "/tape/obligation/pending/reverse_wire/"+id ||
		payload(t, entry)["transition"] != "registered" {
		t.Errorf("entry = %v, want the registration", entry)
	}
}

func TestClaimObligation(t *testing.T) { // 42
	t.Parallel()
	c, _, now := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	o := registerObligation(t, c, id, "E", 0)
	won := claimObligation(t, c, o, "first", 0)
	if got := won.GetObligation(); !won.GetAcquired() || got.GetStatus() != obligationCommitted || got.GetClaimedBy() != "first" ||
		got.GetClaimExpiresAtMs() <= now() || got.GetClaimExpiresAtMs() != got.GetTsMs()+60_000 || won.GetGeneration() != 1 || got.GetClaimGeneration() != 1 {
		t.Errorf("ClaimObligation = %v, want it acquired for 60 s", won)
	}
	lost := claimObligation(t, c, o, "second", 0)
	if lost.GetAcquired() || lost.GetGeneration() != 0 || !proto.Equal(lost.GetObligation(), won.GetObligation()) {
		t.Errorf("ClaimObligation = %v, want the claim of the first", lost)
	}
	none, err := c.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: 77})
	if err != nil || none.GetAcquired() || none.GetObligation() != nil {
		t.Errorf("ClaimObligation of nothing = %v, %v, want nothing", none, err)
	}

	o = registerObligation(t, c, id, "many", 0)
	var wg sync.WaitGroup
	claims := make([]*tapepb.ClaimObligationResponse, 8)
	for i := range claims {
		wg.Go(func() {
			var err error
			claims[i], err = c.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{
				RunId: id, ObligationSeq: o.GetSeq(), Claimer: fmt.Sprint("w", i)})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	winners := 0
	for i, r := range claims {
		if r.GetAcquired() {
			winners++
		}
		if got := r.GetObligation().GetClaimedBy(); got != claims[0].GetObligation().GetClaimedBy() || r.GetAcquired() != (got == fmt.Sprint("w", i)) {
			t.Errorf("claimer %d got %v", i, r)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners, want 1", winners)
	}
}

func TestObligationAttempts(t *testing.T) { // 43, 44
	t.Parallel()
	c, store, now := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	o := registerObligation(t, c, id, "E", 0)
	claimObligation(t, c, o, "w", 0)
	next := now() + time.Hour.Milliseconds()
	got := attemptObligation(t, c, o, "timeout", next)
	if got.GetStatus() != obligationPending || got.GetAttempts() != 1 || got.GetLastError() != "timeout" || got.GetClaimedBy() != "" ||
		got.GetClaimExpiresAtMs() != 0 || got.GetNextAttemptAtMs() != next {
		t.Errorf("RecordObligationAttempt = %v, want PENDING until %d", got, next)
	}
	if early := claimObligation(t, c, o, "w", 0); early.GetAcquired() {
		t.Errorf("ClaimObligation before its time = %v", early)
	}
	store.Advance(time.Hour)
	if due := claimObligation(t, c, o, "w", 0); !due.GetAcquired() || due.GetObligation().GetAttempts() != 1 {
		t.Errorf("ClaimObligation = %v, want it acquired", due)
	}

	o = registerObligation(t, c, id, "two", 2)
	attemptObligation(t, c, o, "e", now()+200)
	got = attemptObligation(t, c, o, "e", now()+200)
	if got.GetStatus() != obligationStuck || got.GetAttempts() != 2 || got.GetNextAttemptAtMs() != 0 {
		t.Errorf("RecordObligationAttempt = %v, want STUCK after two", got)
	}
	o = registerObligation(t, c, id, "ten", 10)
	for _, nextMS := range []int64{-1, now()} { // the second finds it final
		got = attemptObligation(t, c, o, "e", nextMS)
		if got.GetStatus() != obligationStuck || got.GetAttempts() != 1 {
			t.Errorf("RecordObligationAttempt = %v, want STUCK after one", got)
		}
	}
	_, err := c.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{RunId: id, ObligationSeq: 77})
	wantStatus(t, "RecordObligationAttempt of nothing", err, codes.NotFound, "no such obligation")
	if reason := infoOf(t, err).GetReason(); reason != "NO_SUCH_OBLIGATION" {
		t.Errorf("reason %s, want NO_SUCH_OBLIGATION", reason)
	}
}

func TestAnObligationIsClaimedAgainAfterItsClaim(t *testing.T) { // 45
	t.Parallel()
	c, store, _ := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	o := registerObligation(t, c, id, "E", 0)
	claimObligation(t, c, o, "first", 50)
	store.Advance(150 * time.Millisecond)
	second := claimObligation(t, c, o, "second", 0)
	if !second.GetAcquired() || second.GetObligation().GetClaimedBy() != "second" || second.GetGeneration() != 2 {
		t.Errorf("ClaimObligation = %v, want it acquired by the second", second)
	}
	// What the first reports under its generation changes nothing.
	late, err := c.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: id, ObligationSeq: o.GetSeq(), Status: obligationStuck, ClaimGeneration: 1})
	if err != nil || !proto.Equal(late, second.GetObligation()) {
		t.Errorf("late ResolveObligation = %v, %v, want %v", late, err, second.GetObligation())
	}
	late, err = c.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{
		RunId: id, ObligationSeq: o.GetSeq(), NextAttemptAtMs: 1, ClaimGeneration: 1})
	if err != nil || !proto.Equal(late, second.GetObligation()) {
		t.Errorf("late RecordObligationAttempt = %v, %v, want %v", late, err, second.GetObligation())
	}
	done, err := c.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: id, ObligationSeq: o.GetSeq(), Status: obligationCompensated, ClaimGeneration: 2})
	if err != nil || done.GetStatus() != obligationCompensated {
		t.Errorf("ResolveObligation = %v, %v, want COMPENSATED", done, err)
	}
}

func TestResolveObligation(t *testing.T) { // 46
	t.Parallel()
	c, _, now := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	open := &tapepb.ListObligationsRequest{RunId: id, OnlyUnresolved: true}
	end := func(status tapepb.RunStatus) {
		t.Helper()
		if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: status}); err != nil {
			t.Errorf("EndRun(%v) = %v", status, err)
		}
	}
	claimed, direct := registerObligation(t, c, id, "claimed", 0), registerObligation(t, c, id, "direct", 0)
	claimObligation(t, c, claimed, "w", 0)
	end(tapepb.RunStatus_RUN_STATUS_COMPENSATING)
	recoverable, err := c.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{NowMs: now() + 3_600_000})
	if err != nil || len(recoverable.GetRuns()) != 0 {
		t.Errorf("ListRunsToRecover = %v, %v, want nothing", recoverable, err)
	}
	if got := listObligations(t, c, open); got != "direct claimed" {
		t.Errorf("unresolved: %s, want both", got)
	}
	for _, o := range []*tapepb.ObligationRecord{direct, claimed} {
		for range 2 { // a repeat changes nothing
			got, err := c.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
				RunId: id, ObligationSeq: o.GetSeq(), Status: obligationCompensated, ResultJson: `{"ref":1}`})
			if err != nil || got.GetStatus() != obligationCompensated || got.GetResultJson() != `{"ref":1}` || got.GetClaimedBy() != "" ||
				got.GetNextAttemptAtMs() != o.GetNextAttemptAtMs() {
				t.Errorf("ResolveObligation = %v, %v, want COMPENSATED", got, err)
			}
		}
	}
	end(tapepb.RunStatus_RUN_STATUS_FAILED)
	if got := listObligations(t, c, open); got != "" {
		t.Errorf("unresolved: %s, want none", got)
	}
	if cursor := getRun(t, c, id).GetSeqCursor(); cursor != 8 {
		t.Errorf("cursor %d, want 8: 1 begin, 2 registrations, 1 claim, 2 resolutions, 2 ends", cursor)
	}
	_, err = c.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{RunId: id, ObligationSeq: 1})
	wantStatus(t, "ResolveObligation of the run's entry", err, codes.NotFound, "no such obligation")
}

func TestListsOfObligations(t *testing.T) { // 47, 48
	t.Parallel()
	c, _, now := ledgerClient(t)
	a, b := begin(t, c, "a").GetRunId(), begin(t, c, "b").GetRunId()
	waiting, taken := registerObligation(t, c, a, "A", 0), registerObligation(t, c, b, "B", 0)
	claimObligation(t, c, taken, "w", 0)
	registerObligation(t, c, b, "C", 0)
	for _, l := range []struct {
		req  *tapepb.ListObligationsRequest
		want string
	}{
		{&tapepb.ListObligationsRequest{RunId: b, StatusFilter: obligationPending}, "C"},
		{&tapepb.ListObligationsRequest{RunId: b, StatusFilter: obligationCommitted}, "B"},
		{&tapepb.ListObligationsRequest{RunId: b}, "C B"}, // the later one first
		{&tapepb.ListObligationsRequest{RunId: "no-such-run"}, ""},
	} {
		if got := listObligations(t, c, l.req); got != l.want {
			t.Errorf("ListObligations(%v) = %s, want %s", l.req, got, l.want)
		}
	}
	unresolved := func(req *tapepb.ListUnresolvedObligationsRequest, want string) {
		t.Helper()
		l, err := c.ListUnresolvedObligations(t.Context(), req)
		if got := effectKeys(l.GetObligations()); err != nil || got != want {
			t.Errorf("ListUnresolvedObligations(%v) = %s, %v, want %s", req, got, err, want)
		}
	}
	unresolved(&tapepb.ListUnresolvedObligationsRequest{}, "A C")
	unresolved(&tapepb.ListUnresolvedObligationsRequest{NowMs: now() + 300_000}, "A B C")
	unresolved(&tapepb.ListUnresolvedObligationsRequest{NowMs: now() + 300_000, IncludeCommittedExpired: true}, "B")
	unresolved(&tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true}, "")
	attemptObligation(t, c, waiting, "e", 0)
	unresolved(&tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true}, "A")
	unresolved(&tapepb.ListUnresolvedObligationsRequest{}, "C")
	unresolved(&tapepb.ListUnresolvedObligationsRequest{NowMs: now() + 300_000, IncludePending: true, IncludeStuck: true, Limit: 2}, "A C")
}

func TestAnObligationAtItsLimitsReachesADefaultClient(t *testing.T) {
	t.Parallel()
	text := func(n int) string { return strings.Repeat("x", n) }
	c, _, _ := ledgerClient(t)
	id := begin(t, c, "i").GetRunId()
	req := &tapepb.RegisterCompensationRequest{
		RunId: id, EffectKey: text(tape.MaxObligationNames - 100), CompensatorRef: text(tape.MaxCompensator), PayloadJson: text(3 << 20),
	}
	_, err := c.RegisterCompensation(t.Context(), req)
	wantTooLarge(t, "RegisterCompensation", err, "payload_json", "2000000")
	req.PayloadJson = text(tape.MaxCompensation)
	o, err := c.RegisterCompensation(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	attemptObligation(t, c, o, text(tape.MaxAttemptError), 1)
	claimObligation(t, c, o, text(tape.MaxClaimer), 0)
	o, err = c.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: id, ObligationSeq: o.GetSeq(), Status: obligationStuck, ResultJson: text(tape.MaxResult)})
	if err != nil {
		t.Fatal(err)
	}
	one, err := c.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id})
	all, allErr := c.ListUnresolvedObligations(t.Context(), &tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true})
	if err != nil || allErr != nil || len(one.GetObligations()) != 1 || len(all.GetObligations()) != 1 ||
		!proto.Equal(one.GetObligations()[0], o) || !proto.Equal(all.GetObligations()[0], o) {
		t.Errorf("%d obligations, %v; %d, %v; want the one in both lists", len(one.GetObligations()), err, len(all.GetObligations()), allErr)
	}
	journal(t, c, id, 1, 5)
}
