package sqlite

import (
	"testing"
	"time"
)

func TestShiftOfATimeNamespace(t *testing.T) {
	t.Parallel()
	for offsets, want := range map[string]time.Duration{
		"": 0,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic           7         0\nboottime        86400       500\n": 24*time.Hour + 500,
		"boottime           -2         0\n":                                  -2 * time.Second,
		"boottime          soon         0\n":                                 0,
	} {
		if got := parseShift(offsets); got != want {
			t.Errorf("%q: got %v, want %v", offsets, got, want)
		}
	}
	// The system's own clock does not go back.
	c := newSystemClock()
	boot, first := c.Up()
	if _, second := c.Up(); boot == "" || second < first {
		t.Errorf("boot %q: up for %v, then for %v", boot, first, second)
	}
}
