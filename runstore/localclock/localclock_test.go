package localclock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// A step of the time of day changes no duration.
func TestStepsMoveNoDuration(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		step time.Duration
	}{{"ahead", 3 * time.Hour}, {"back", -3 * time.Hour}, {"not at all", 0}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				skew := time.Duration(0)
				c := localclock.New(func() time.Time { return time.Now().Add(skew) })
				began := c.Read()
				deadline := began.Add(time.Minute)
				time.Sleep(5 * time.Second)
				skew = tc.step
				now := c.Read()
				if got, want := now.Sub(began), 5*time.Second; got != want {
					t.Errorf("Sub: got %v, want %v", got, want)
				}
				if got, want := c.Since(began), 5*time.Second; got != want {
					t.Errorf("Since: got %v, want %v", got, want)
				}
				if got, want := c.Until(deadline), 55*time.Second; got != want {
					t.Errorf("Until: got %v, want %v", got, want)
				}
				if !now.Before(deadline) || now.Before(began) {
					t.Errorf("Before: got the deadline %t and the beginning %t, want true and false", now.Before(deadline), now.Before(began))
				}
				if got, want := now.Wall().Sub(began.Wall()), 5*time.Second+tc.step; got != want {
					t.Errorf("the time of day moved by %v, want %v", got, want)
				}
			})
		})
	}
}

// TestLeastUntil checks that a step ahead of the time of day, which is what a suspend looks like where
// the monotonic clock stops, shortens the time left, and that a step back does not prolong it.
func TestLeastUntil(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		step, want time.Duration // want is what is left 5 s into a minute
	}{
		{"not at all", 0, 55 * time.Second},
		{"ahead", 10 * time.Second, 45 * time.Second},
		{"past the end", time.Hour, -(time.Hour - 55*time.Second)},
		{"back", -time.Hour, 55 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				skew := time.Duration(0)
				c := localclock.New(func() time.Time { return time.Now().Add(skew) })
				end := c.Read().Add(time.Minute)
				time.Sleep(5 * time.Second)
				skew = tc.step
				if got := c.LeastUntil(end); got != tc.want {
					t.Errorf("got %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// TestMostSince checks that a step ahead of the time of day, which is what a suspend looks like where the monotonic
// clock stops, prolongs the time elapsed, and that a step back does not shorten it.
func TestMostSince(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		step, want time.Duration // want is what has elapsed after 5 s
	}{
		{"not at all", 0, 5 * time.Second},
		{"ahead", time.Hour, time.Hour + 5*time.Second},
		{"back", -time.Hour, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				skew := time.Duration(0)
				c := localclock.New(func() time.Time { return time.Now().Add(skew) })
				began := c.Read()
				time.Sleep(5 * time.Second)
				skew = tc.step
				if got := c.MostSince(began); got != tc.want {
					t.Errorf("got %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// The zero clock is the system's, and the zero reading long ago.
func TestZero(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c localclock.Clock
		if got, want := c.Read().Wall(), time.Now().Round(0); got != want {
			t.Errorf("got %v, want the system's %v", got, want)
		}
		var zero localclock.Reading
		if !zero.IsZero() || c.Read().IsZero() {
			t.Errorf("IsZero: got %t of the zero reading and %t of another, want true and false", zero.IsZero(), c.Read().IsZero())
		}
		if got := c.Since(zero); got < 100*365*24*time.Hour {
			t.Errorf("the zero reading was %v ago, want long ago", got)
		}
	})
}
