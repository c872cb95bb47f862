package pace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !pace.Pause(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("paused for %v, want a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if pace.Pause(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("paused for %v, want until the context's end after a second", time.Since(began))
		}
		for range 20 { // the timer and the end are both there
			if pace.Pause(ctx, 0) {
				t.Fatal("a pause after the context's end reports that it goes on")
			}
		}
	})
}

func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, time.Minute} {
		least, most := d, time.Duration(0)
		for range 1000 {
			j := pace.Jitter(d)
			least, most = min(least, j), max(most, j)
		}
		if least < d/2 || most > d || d > 1 && least == most {
			t.Errorf("jitter of %v from %v to %v, want between half of it and all", d, least, most)
		}
	}
}
