package tape_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// begin begins pending runs of the shard, up to n.
func (s *shard) begin(n int) {
	s.t.Helper()
	for ; n > 0 && s.at.PendingRuns() > 0; n-- {
		next, err := s.tp.BeginReactionRun(s.t.Context(), s.ID, s.at)
		if err != nil {
			s.t.Fatalf("BeginReactionRun: %v", err)
		}
		s.at = next
	}
}

// read reads the cursor again, as the next holder of the lease does.
func (s *shard) read() {
	s.t.Helper()
	c, err := s.tp.ShardCursor(s.t.Context(), s.f.Run())
	if err != nil {
		s.t.Fatalf("ShardCursor: %v", err)
	}
	s.at = c
}

// want checks the cursor: its position, its pending runs, and whether its record names runs.
func (s *shard) want(position runstore.Position, pending int, settled bool) {
	s.t.Helper()
	if s.at.Position != position || s.at.PendingRuns() != pending || s.at.Settled() != settled {
		s.t.Errorf("the cursor is at %d with %d pending runs, settled %t; want %d, %d, %t",
			s.at.Position, s.at.PendingRuns(), s.at.Settled(), position, pending, settled)
	}
}

// begunRuns returns the apps and invocations of all runs, in order.
func begunRuns(t *testing.T, tp *tape.Tape, store *memory.Store) (names []string) {
	t.Helper()
	store.Advance(runstore.MinTTL) // then they need a driver
	all, err := tp.ListRunsToRecover(context.Background(), time.Time{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		names = append(names, r.App+" "+r.Invocation)
	}
	slices.Sort(names)
	return names
}

// A commit names a bounded number of runs to begin. A shard that reads the cursor begins those that
// are left. Beginning a run twice leaves it as it is.
func TestPendingRuns(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", Handler: tape.HandlerAgent, AgentApp: "app"})
	var positions []runstore.Position
	for p := range 150 {
		positions = append(positions, runstore.Position(10+p))
	}
	all := matches(positions...)
	s.advance(500, all...)
	s.want(73, 64, false)
	s.begin(10)
	s.want(73, 54, false)
	s.read() // nothing of that was committed
	s.want(73, 64, false)
	s.begin(20)
	s.advance(500, all...) // the others are not begun yet
	s.want(73, 44, false)
	version := s.at.Version
	s.advance(500, all...) // nothing has changed
	if s.want(73, 44, false); s.at.Version != version {
		t.Error("a call that has nothing to say has made a commit")
	}
	s.read()
	s.want(73, 44, false)
	s.begin(64)
	s.want(73, 0, false)
	s.advance(500, all...)
	s.want(137, 64, false)
	s.begin(64)
	s.advance(500, all...)
	s.want(500, 22, false)
	s.begin(64)
	s.advance(500, all...)
	s.want(500, 0, true)
	s.read()
	s.want(500, 0, true)
	names := begunRuns(t, tp, store)
	for _, p := range positions {
		if !slices.Contains(names, fmt.Sprintf("app react-r-%d", p)) {
			t.Errorf("the entry at %d has no run", p)
		}
	}
	if len(names) != len(positions) {
		t.Errorf("%d runs were begun, want %d", len(names), len(positions))
	}
	if next, err := tp.BeginReactionRun(t.Context(), "r", s.at); !errors.Is(err, runstore.ErrInvalid) || next != s.at {
		t.Errorf("BeginReactionRun without a pending run = %+v, %v", next, err)
	}
}

// A definition that changes takes effect behind the cursor: what the cursor names is begun under the former app, and has
// no task.
func TestHandlerChangesBehindTheCursor(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", Handler: tape.HandlerAgent, AgentApp: "app"})
	s.advance(2, matches(1, 2)...)
	s.Handler, s.AgentApp = tape.HandlerTask, "other"
	s.read()
	s.begin(1)
	s.advance(4, matches(1, 2, 3, 4)...)
	s.want(2, 1, false)
	s.begin(1)
	s.advance(4, matches(1, 2, 3, 4)...)
	s.want(4, 0, true)
	s.Handler = tape.HandlerAgent
	s.advance(5, matches(3, 4, 5)...)
	s.begin(1)
	s.AgentApp = "third"
	s.advance(6, matches(5, 6)...)
	s.begin(1)
	s.Handler = tape.HandlerUnspecified
	s.advance(7, matches(6, 7)...)
	s.want(7, 0, true)
	if got := listTasks(t, tp, "r", 0); got != "4:1 3:1" {
		t.Errorf("tasks: %s", got)
	}
	if got := strings.Join(begunRuns(t, tp, store), ", "); got != "app react-r-1, app react-r-2, other react-r-5, third react-r-6" {
		t.Errorf("runs: %s", got)
	}
}
