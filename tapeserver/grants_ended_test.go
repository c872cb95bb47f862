package tapeserver_test

import (
	"context"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// slowReads delays the answer of the first GetRun after arm.
type slowReads struct {
	runstore.RunStore
	mu    sync.Mutex
	read  chan struct{} // closed when the run was read
	until chan struct{}
}

func (s *slowReads) arm() (read, until chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read, s.until = make(chan struct{}), make(chan struct{})
	return s.read, s.until
}

func (s *slowReads) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := s.RunStore.GetRun(ctx, id)
	s.mu.Lock()
	read, until := s.read, s.until
	s.read, s.until = nil, nil
	s.mu.Unlock()
	if read != nil {
		close(read)
		<-until
	}
	return run, err
}

// A heartbeat is under way on a driver's connection while the driver ends its run, and is answered
// later. The grant of the run that has ended stays forgotten: the last event of the invocation is
// appended, as on every connection that has no grant.
func TestLateHeartbeatBringsNoEndedGrantBack(t *testing.T) {
	t.Parallel()
	store := &slowReads{RunStore: memory.New(nil).Open()}
	c := connections(t, store, tapeserver.Options{})()
	id := beginAs(t, c, "a")
	read, until := store.arm()
	beat := make(chan error, 1)
	go func() {
		_, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "a", LeaseTtlMs: 60_000})
		beat <- err
	}()
	<-read
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	req := beginRequest("i")
	last := &tapepb.AppendEventRequest{
		AppName: req.GetAppName(), UserId: req.GetUserId(), SessionId: req.GetSessionId(),
		Event: &tapepb.EventRecord{Id: "last", InvocationId: req.GetInvocationId()},
	}
	if _, err := c.AppendEvent(t.Context(), last); err != nil {
		t.Fatalf("before the late answer: %v", err)
	}
	close(until)
	if err := <-beat; err != nil {
		t.Logf("the heartbeat: %v", err)
	}
	if _, err := c.AppendEvent(t.Context(), last); err != nil {
		t.Errorf("after the late answer of a heartbeat: %v", err)
	}
}
