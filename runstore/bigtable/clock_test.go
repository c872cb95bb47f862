package bigtable_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// What a handle takes Bigtable's clock to be is never ahead of it, follows it, learns
// from each reading, and does not go back.
func TestClockStaysBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, here := &bigtable.Clock{}, localclock.Clock{}
		offset := -1000 * time.Hour // the server's clock is another
		server := func() time.Time { return time.Now().Add(offset).Truncate(time.Millisecond) }
		var last time.Time
		check := func(most time.Duration) {
			t.Helper()
			got, now := c.Estimate(), server()
			if got.After(now) || now.Sub(got) > most {
				t.Fatalf("it is %v behind, want 0 to %v", now.Sub(got), most)
			}
			if got.Before(last) {
				t.Fatalf("it went back by %v", last.Sub(got))
			}
			last = got
		}
		for range 20 {
			asked, now := here.Read(), server()
			time.Sleep(7 * time.Millisecond) // the reply is on its way
			c.Learn(now, asked)
			for _, pass := range []time.Duration{0, time.Millisecond, time.Second, 3 * time.Second} {
				time.Sleep(pass)
				check(12 * time.Millisecond) // that of the reply, and the drift of a few seconds
			}
		}
		time.Sleep(time.Hour)
		check(time.Second)
		if !c.Old() {
			t.Error("a reading of an hour ago is not old")
		}
	})
}

// A reading that was long on its way tells nothing new. A clock that was put back is
// followed.
func TestClockReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, here := &bigtable.Clock{}, localclock.Clock{}
		start := time.Now().Truncate(time.Millisecond)
		c.Learn(start, here.Read())
		asked := here.Read()
		time.Sleep(5 * time.Second)
		c.Learn(start, asked) // asked for at the start, and here now
		if got := time.Since(c.Estimate()); got > 10*time.Millisecond {
			t.Errorf("a late reading put the clock back by %v", got)
		}
		back := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		c.Learn(back, here.Read())
		if got := c.Estimate(); !got.Equal(back) {
			t.Errorf("a clock that was put back by a minute is taken to be %v ahead of that", got.Sub(back))
		}
		ahead := time.Now().Add(time.Minute).Truncate(time.Millisecond)
		c.Learn(ahead, here.Read())
		if got := c.Estimate(); !got.Equal(ahead) {
			t.Errorf("a clock that was put forward is taken to be %v", got.Sub(ahead))
		}
	})
}

// A step of the process's time of day moves what Bigtable's clock is taken to be by
// nothing. It may mean that the process was suspended, so Bigtable's clock is read again.
func TestClockIgnoresSteps(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				skew := time.Duration(0)
				here := localclock.New(func() time.Time { return time.Now().Add(skew) })
				c := bigtable.NewClock(here)
				c.Learn(time.Now().Truncate(time.Millisecond), here.Read())
				time.Sleep(time.Second)
				if c.Old() {
					t.Error("a reading of a second ago is old, want it in use")
				}
				skew = step
				if got, want := c.Estimate(), time.Now(); got.After(want) || want.Sub(got) > 10*time.Millisecond {
					t.Errorf("after a step by %v: got %v, want at most 10ms before %v", step, got, want)
				}
				if !c.Old() {
					t.Errorf("after a step by %v the reading is in use, want Bigtable's clock read again", step)
				}
				c.Learn(time.Now().Truncate(time.Millisecond), here.Read())
				if c.Old() {
					t.Error("a reading after the step is old, want it in use")
				}
			})
		})
	}
}

// The times that a write tells lie between two readings of the store clock around it,
// and those of one run never go back, whichever handle writes.
func TestTimesOfWrites(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	handles := []*bigtable.Store{open(t, table), open(t, table), open(t, table)}
	hold(t, handles[0], "run")
	var last time.Time
	for i := range 60 {
		s := handles[i%len(handles)]
		done := commit(t, s, signal("run", "event"))
		after, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if done.Time.Before(last) || done.Time.After(after) {
			t.Errorf("commit %d is at %v, that before at %v, and the clock after it shows %v", i, done.Time, last, after)
		}
		last = done.Time
	}
	created, err := handles[0].CreateRun(t.Context(), runstore.RunSpec{ID: "next", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute}})
	if err != nil || !created.Lease.ExpiresAt.Equal(created.Run.CreatedAt.Add(time.Minute)) {
		t.Errorf("a lease of a minute from %v on ends at %v, %v", created.Run.CreatedAt, created.Lease.ExpiresAt, err)
	}
}

// TestClockOfAFastProcess checks that the estimate of a process whose monotonic clock is fast by 1 part in 8192 is not
// ahead of Bigtable's clock for as long as one reading serves.
func TestClockOfAFastProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, here := &bigtable.Clock{}, localclock.Clock{}
		start := time.Now().Truncate(time.Second)
		c.Learn(start, here.Read())
		const passed = 18 * time.Second // a reading is used for 20 s
		time.Sleep(passed)
		if server := start.Add(passed - passed/8192); c.Estimate().After(server) {
			t.Errorf("the estimate is %v ahead of Bigtable's clock", c.Estimate().Sub(server))
		}
	})
}
