package tapeserver_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestAPurgedRunIsBegunAgain checks that the connection which has the grant of a purged run can begin that
// run again, as any other connection can. ResumeRun creates no run.
func TestAPurgedRunIsBegunAgain(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a drive a", "b drive b", "all drive")
	for _, principal := range []string{"all", "a"} {
		t.Run(principal, func(t *testing.T) {
			t.Parallel()
			store := memory.New(nil).Open()
			c, _ := startAuth(t, store, &tapeserver.Options{Auth: check, Fence: tape.FenceConnection})
			ctx, req := as(t.Context(), principal), beginRequest("i")
			req.TenantId = "a"
			first, err := c.BeginRun(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			id := first.GetRunId()
			purge(t, store, id)
			_, err = c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: req.GetLeaseOwner(), LeaseTtlMs: 60_000})
			code := codes.NotFound
			if principal == "a" { // the refusal of a limited principal does not show whether the run exists
				code = codes.PermissionDenied
			}
			wantStatus(t, "ResumeRun", err, code, "no such run")
			again, err := c.BeginRun(ctx, req)
			if err != nil || again.GetRunId() != id || again.GetResumed() || again.GetGrant().GetToken() <= first.GetGrant().GetToken() {
				t.Fatalf("BeginRun = %v, %v; want a new run with a token above %d", again, err, first.GetGrant().GetToken())
			}
			if !acts(ctx, c, id, "k") {
				t.Error("the driver may not act under its later grant")
			}
		})
	}
}

// TestAPurgedRunOfAnotherTenant checks that a connection which has the grant of a purged run does not reach
// the run that another tenant has begun under the same key.
func TestAPurgedRunOfAnotherTenant(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a drive a", "b drive b")
	store := memory.New(nil).Open()
	c, _ := startAuth(t, store, &tapeserver.Options{Auth: check, Fence: tape.FenceConnection})
	req := beginRequest("i")
	req.TenantId = "a"
	r, err := c.BeginRun(as(t.Context(), "a"), req)
	if err != nil {
		t.Fatal(err)
	}
	purge(t, store, r.GetRunId())
	other := beginRequest("i")
	other.TenantId = "b"
	b, _ := startAuth(t, store, &tapeserver.Options{Auth: check, Fence: tape.FenceConnection})
	if _, err := b.BeginRun(as(t.Context(), "b"), other); err != nil {
		t.Fatal(err)
	}
	_, err = c.BeginRun(as(t.Context(), "a"), req)
	wantStatus(t, "BeginRun", err, codes.PermissionDenied, "no such run")
}

// TestValueUnderTheGrantOfAPurgedRun checks that the grant of a purged run, once a write under it was
// refused, is not presented for values: the connection drives another run.
func TestValueUnderTheGrantOfAPurgedRun(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	c := connections(t, store, tapeserver.Options{})()
	if _, err := c.BeginRun(t.Context(), beginRequest("kept")); err != nil {
		t.Fatal(err)
	}
	purge(t, store, beginAs(t, c, "A"))
	write := func() error {
		_, err := c.WriteValue(t.Context(), &tapepb.WriteValueRequest{Key: "k", ValueJson: "1", IfVersion: -1})
		return err
	}
	wantStatus(t, "WriteValue", write(), codes.NotFound, "no such run")
	if err := write(); err != nil {
		t.Errorf("WriteValue after the refusal: %v", err)
	}
	if _, err := c.DeleteValue(t.Context(), &tapepb.DeleteValueRequest{Key: "k"}); err != nil {
		t.Errorf("DeleteValue: %v", err)
	}
}
