package memory_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore/memory"
)

// TestClockStepsBack checks that the store clock stands still while the underlying clock is behind.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	clock := at
	s := memory.New(&memory.Options{Clock: func() time.Time { return clock }}).Open()
	for _, step := range []struct{ clock, want time.Duration }{
		{0, 0}, {-time.Hour, 0}, {-time.Second, 0}, {time.Second, time.Second}, {0, time.Second},
	} {
		clock = at.Add(step.clock)
		got, err := s.Now(t.Context())
		if err != nil || !got.Equal(at.Add(step.want)) {
			t.Errorf("a clock at %v: got %v, %v, want %v", clock, got, err, at.Add(step.want))
		}
	}
}
