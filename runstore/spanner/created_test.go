package spanner_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

// readsRun reports whether a request reads a run outside a transaction.
func readsRun(request any) bool {
	r, ok := request.(*spannerpb.ExecuteSqlRequest)
	return ok && r.GetRequestOptions().GetRequestTag() == "tapestore-run"
}

// TestRepeatedCreationThatCannotBeRead checks that a creation which was applied is not reported as not
// applied when the run cannot be read for the reply (I11).
func TestRepeatedCreationThatCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	spec := withLease("run")
	spec.Lease.Grant = "grant"
	if _, err := s.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	cut := p.server.Refuse(0, codes.PermissionDenied, func(c spanneremulator.Call) bool {
		return c.Database == p.String() && readsRun(c.Request)
	})
	defer cut.Stop()
	if _, err := s.CreateRun(t.Context(), spec); runstore.OutcomeOf(err) != runstore.Unknown || cut.Count() == 0 {
		t.Errorf("got %v after %d refused reads, want ErrUnknownOutcome", err, cut.Count())
	}
}

// TestExistingRunIsPurgedMeanwhile checks that a creation which finds a run, and then finds it purged, is
// an error and returns no run that is gone.
func TestExistingRunIsPurgedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	other := open(t, p, patient)
	hold(t, other, "run")
	var once sync.Once
	s := open(t, p, patient, beforeSending(func(request any) {
		if readsRun(request) {
			once.Do(func() { commit(t, other, purgeOf("run")) })
		}
	}))
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"})
	if !errors.Is(err, runstore.ErrUnavailable) || !strings.Contains(err.Error(), "purged") || created.New {
		t.Errorf("got %+v, %v, want ErrUnavailable because of the purge", created, err)
	}
}

// TestTimesOfARunNeverGoBack checks that the times of a run never go back, when each of its writes asks
// a server whose clock is behind that of the server before.
func TestTimesOfARunNeverGoBack(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	hold(t, s, "run")
	ahead := setSeenAhead(t, p, s, "run")
	for i := range 3 {
		if done := commit(t, s, signal("run", "event")); done.Time.Before(ahead) {
			t.Errorf("write %d is at %v, the run was written to at %v before", i, done.Time, ahead)
		}
	}
}
