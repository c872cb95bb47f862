package tapeserver_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// outages is a store of which some calls fail once their fault is set.
type outages struct {
	runstore.RunStore
	commits atomic.Pointer[runstore.OpError] // the error of every commit
	records atomic.Bool                      // no records can be read
	run     atomic.Pointer[runstore.RunID]   // the head of this run cannot be read
}

func (s *outages) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if err := s.commits.Load(); err != nil {
		return runstore.Committed{}, err
	}
	return s.RunStore.Commit(ctx, b)
}

func (s *outages) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if s.records.Load() {
		return nil, &runstore.OpError{Op: "read records", Run: id, Err: runstore.ErrUnavailable}
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

func (s *outages) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if bad := s.run.Load(); bad != nil && *bad == id {
		return runstore.Run{}, &runstore.OpError{Op: "get run", Run: id, Err: runstore.ErrUnavailable}
	}
	return s.RunStore.GetRun(ctx, id)
}

// wantDenied checks that BeginEffect was refused so that a client which acts after every other status does not.
func wantDenied(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if status.Code(err) != codes.PermissionDenied || reasonIn(err) != reason {
		t.Errorf("%s = %v, reason %q; want PERMISSION_DENIED, reason %s", what, err, reasonIn(err), reason)
	}
}

// TestAScopeIsDeniedDuringAnOutage checks that the scope of an effect which the run was not granted is refused
// also while no refusal can be committed to the journal, for example on a full disk.
func TestAScopeIsDeniedDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := &outages{RunStore: memory.New(nil).Open()}
	address, _ := listen(t, s, &tapeserver.Options{NoMatcher: true, Logger: quietly})
	c := tapepb.NewTapeClient(connection(t, address))
	id := begin(t, c, "i").GetRunId()
	for _, kind := range []error{
		nil, runstore.ErrUnavailable, runstore.ErrUnknownOutcome, &runstore.ConflictError{Guard: "version", Key: runstore.SummaryKey},
	} {
		if kind != nil {
			s.commits.Store(&runstore.OpError{Op: "commit", Err: kind})
		}
		_, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, ToolName: "wire_transfer", Scope: "not-granted"})
		wantDenied(t, fmt.Sprintf("commits fail with %v: BeginEffect of a scope that is not granted", kind), err, "SCOPE_NOT_GRANTED")
	}
}

// TestAnEffectThatExistsIsDeniedDuringAnOutage checks a driver that resumes and begins an effect which is
// CONFIRMED. The commit is refused because the effect exists, and then the effect cannot be read.
func TestAnEffectThatExistsIsDeniedDuringAnOutage(t *testing.T) {
	t.Parallel()
	s := &outages{RunStore: memory.New(nil).Open()}
	address, _ := listen(t, s, &tapeserver.Options{NoMatcher: true})
	c := tapepb.NewTapeClient(connection(t, address))
	id := begin(t, c, "i").GetRunId()
	if !acts(t.Context(), c, id, "pay") {
		t.Fatal("the driver may not act")
	}
	s.records.Store(true)
	_, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "pay", ToolName: "pay"})
	wantDenied(t, "BeginEffect of an effect that is CONFIRMED", err, "EFFECT_EXISTS")
}

// TestABusinessKeyIsDeniedDuringAnOutage checks a payment that is CONFIRMED under its business key in one run, and
// is begun in another run, while the first run, or its effect, cannot be read.
func TestABusinessKeyIsDeniedDuringAnOutage(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a operate a")
	s := &outages{RunStore: memory.New(nil).Open()}
	c, _ := startAuth(t, s, &tapeserver.Options{Auth: check, NoMatcher: true})
	a := as(t.Context(), "a")
	begin := func(invocation string) string {
		t.Helper()
		r, err := c.BeginRun(a, &tapepb.BeginRunRequest{AppName: "app", InvocationId: invocation, TenantId: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetRunId()
	}
	pay := func(run string) (*tapepb.BeginEffectResponse, error) {
		return c.BeginEffect(a, &tapepb.BeginEffectRequest{RunId: run, ToolName: "pay", Connector: "bank", BusinessKey: "invoice-1"})
	}
	first, second := begin("1"), begin("2")
	e, err := pay(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompleteEffect(a, &tapepb.CompleteEffectRequest{RunId: first, IdempotencyKey: e.GetIdempotencyKey(), Status: confirmed, ResponseJson: `"paid"`}); err != nil {
		t.Fatal(err)
	}
	id := runstore.RunID(first)
	s.run.Store(&id)
	_, err = pay(second)
	wantDenied(t, "BeginEffect in another run, while the first one cannot be read", err, "EFFECT_EXISTS")
	s.run.Store(nil)
	s.records.Store(true)
	_, err = pay(second)
	wantDenied(t, "BeginEffect in another run, while no effect can be read", err, "EFFECT_EXISTS")
}
