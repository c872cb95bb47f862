package bigtable

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

// onRow matches writes to a row.
func onRow(method, row string) func(Call) bool {
	return func(c Call) bool { return c.Method == method && string(c.Row) == row }
}

// A conditional mutation is on its way when its sender gives it up. It arrives when
// the test says so, after another.
func TestHold(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		hold := s.Hold(1, onRow("CheckAndMutateRow", "row"))
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			given <- c.check(ctx, "row", nil, []*bigtablepb.Mutation{setCell("f", "late", "second")}, []*bigtablepb.Mutation{setCell("f", "late", "first")})
		}()
		hosttest.AwaitFault(t, hold, 1)
		cancel()
		c.refused("the sender", <-given, codes.Canceled)
		c.has("row")
		c.refused("another row", c.check(t.Context(), "other", nil, nil, []*bigtablepb.Mutation{setCell("f", "q", "")}), codes.OK)
		c.refused("the next", c.check(t.Context(), "row", nil, nil, []*bigtablepb.Mutation{setCell("f", "early", "first")}), codes.OK)
		hold.Stop()
		hold.Stop()
		hosttest.WaitFor(t, "the late one is applied", func() bool {
			columns, err := c.columns("row", nil)
			return err == nil && len(columns) == 2
		})
		c.has("row", "f:early=first", "f:late=second")
	})
}

func TestLosesReplies(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		drop := s.DropReplies(2, onRow("MutateRow", "row"))
		c.refused("the first", c.mutate(t.Context(), "row", setCell("f", "1", "")), codes.Unavailable)
		c.refused("the second, a bad one", c.mutate(t.Context(), "row", setCell("g", "2", "")), codes.Unavailable)
		c.refused("the third", c.mutate(t.Context(), "row", setCell("f", "3", "")), codes.OK)
		c.has("row", "f:1=", "f:3=")
		if drop.Count() != 2 {
			t.Errorf("met %d times, want 2", drop.Count())
		}
		s.DropReplies(0, func(c Call) bool { return c.Method == "ReadRows" })
		columns, err := c.columns("row", nil)
		if len(columns) > 0 {
			t.Errorf("an answer that was dropped has %v", columns)
		}
		c.refused("a read", err, codes.Unavailable)
	})
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		refuse := s.Refuse(0, func(c Call) bool { return len(c.Metadata.Get("op")) > 0 })
		marked := metadata.AppendToOutgoingContext(t.Context(), "op", "commit")
		c.refused("marked", c.mutate(marked, "row", setCell("f", "1", "")), codes.Unavailable)
		c.refused("not marked", c.mutate(t.Context(), "row", setCell("f", "2", "")), codes.OK)
		refuse.Stop()
		c.refused("marked, after that", c.mutate(marked, "row", setCell("f", "3", "")), codes.OK)
		c.has("row", "f:2=", "f:3=")
	})
}

func TestCounts(t *testing.T) {
	t.Parallel()
	onTiers(t, func(t *testing.T, s *Server) {
		c := newRawClient(t, s)
		table := c.table.String()
		watch := s.Watch(func(c Call) bool { return c.Table == table })
		for _, column := range []string{"1", "2", "3"} {
			c.refused("a write", c.mutate(t.Context(), "row", setCell("f", column, "")), codes.OK)
		}
		c.has("row", "f:1=", "f:2=", "f:3=")
		got := s.Calls()
		if got["MutateRow"] != 3 || got["ReadRows"] != 1 || got["CreateTable"] != 1 || got["GetTable"] != 0 || watch.Count() != 4 {
			t.Errorf("counted %v and %d on the table", got, watch.Count())
		}
	})
}

// Whoever is held when the emulator ends hears of it.
func TestEndsWithHeldCalls(t *testing.T) {
	t.Parallel()
	for _, tier := range []string{emulators.TierEmulator, emulators.TierLocal} {
		s := startServer(t, tier)
		c := newRawClient(t, s)
		hold := s.Hold(0, onRow("MutateRow", "row"))
		given := make(chan error, 1)
		go func() { given <- c.mutate(t.Context(), "row", setCell("f", "q", "")) }()
		hosttest.AwaitFault(t, hold, 1)
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", tier, err)
		}
		select {
		case <-given: // either answer may have won
		case <-time.After(hosttest.Hang):
			t.Errorf("%s: the call has no end", tier)
		}
	}
}
