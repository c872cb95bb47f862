package group_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Members appear with their attributes when they join, and are removed when they leave, with one event.
func TestJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		b := join(t, store, group.MemberSpec{Name: "b", Attributes: []byte("10.0.0.2")}, nil)
		synctest.Wait()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		synctest.Wait()
		s, err := a.group.Members(t.Context())
		if err != nil || len(s.Members) != 2 || s.Members[0].Name != "a" || string(s.Members[1].Attributes) != "10.0.0.2" || s.Members[1].Token != 1 || s.Members[1].JoinedAt.IsZero() {
			t.Errorf("got %+v, %v; want a and b with its attributes", s, err)
		}
		if err := b.membership(t).SetAttributes(t.Context(), []byte("10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		if s, err = a.group.Members(t.Context()); err != nil || len(s.Members) != 2 || string(s.Members[1].Attributes) != "10.0.0.3" {
			t.Errorf("got %+v, %v; want the new attributes", s, err)
		}
		time.Sleep(10 * ttl)
		b.leave(t)
		if got := names(t, a.group); !slices.Equal(got, []string{"a"}) {
			t.Errorf("members %v, want a", got)
		}
		if got := strings.Join(history(t, store, a.group, "b"), ", "); got != "joined 1, released 1" {
			t.Errorf("events: %s", got)
		}
		head, err := store.GetRun(t.Context(), a.group.MemberRun("b"))
		if err != nil || head.Summary.Version != 0 || head.Holder.Token != 0 || !head.Unlisted {
			t.Errorf("run %+v, %v; want no record, a free lease and an unlisted run", head, err)
		}
	})
}

// A member that dies counts until its lease expires, on the store clock, and not longer. The others
// remove it, with one event.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		b := join(t, store, group.MemberSpec{Name: "b"}, nil)
		join(t, store, group.MemberSpec{Name: "c"}, nil)
		time.Sleep(time.Minute)
		b.set(func(c *conn) { c.cut = true })
		head, err := store.GetRun(t.Context(), a.group.MemberRun("b"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(head.ExpiresAt) - time.Microsecond)
		if got := names(t, a.group); len(got) != 3 {
			t.Errorf("members %v before the expiry, want three", got)
		}
		time.Sleep(time.Microsecond)
		if got := names(t, a.group); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("members %v at the expiry, want a and c", got)
		}
		if err := b.result(t); !lost(err) {
			t.Errorf("join of the member without a store: %v, want a lost lease", err)
		}
		time.Sleep(5 * time.Second)
		if got := strings.Join(history(t, store, a.group, "b"), ", "); got != "joined 1, expired 1" {
			t.Errorf("events: %s", got)
		}
	})
}

// A second process under the same name waits for the end of the first, by a release or by an expiry.
func TestSecondProcessWaits(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(first *member)
		want string
	}{
		{"leaves", func(first *member) { first.stop() }, "joined 1, released 1, joined 2"},
		{"dies", func(first *member) { first.set(func(c *conn) { c.cut = true }) }, "joined 1, expired 1, joined "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(nil).Open()
				first := join(t, store, group.MemberSpec{Name: "a"}, nil)
				synctest.Wait()
				second := join(t, store, group.MemberSpec{Name: "a", Attributes: []byte("second")}, nil)
				time.Sleep(time.Minute)
				if len(second.began) != 0 {
					t.Fatal("both are members")
				}
				tc.end(first)
				time.Sleep(ttl + time.Second)
				if len(second.began) != 1 {
					t.Error("the second has not become a member")
				}
				if s, err := second.group.Members(t.Context()); err != nil || len(s.Members) != 1 || string(s.Members[0].Attributes) != "second" {
					t.Errorf("members %+v, %v; want the second process", s, err)
				}
				if got := strings.Join(history(t, store, second.group, "a"), ", "); !strings.HasPrefix(got, tc.want) {
					t.Errorf("events: %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// A second process that takes the name over ends the first membership at once, with the reason, in
// one step with its own beginning; the first one's writes are refused.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		first := join(t, store, group.MemberSpec{Name: "a"}, nil)
		synctest.Wait()
		second := join(t, store, group.MemberSpec{Name: "a", TakeOver: true}, nil)
		synctest.Wait() // no time passes
		if len(second.began) != 1 {
			t.Fatal("the second has not become a member at once")
		}
		if err := first.membership(t).SetAttributes(t.Context(), nil); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("write of the first: %v, want ErrFenced", err)
		}
		if err := first.result(t); !lost(err) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("join of the first: %v, want a lost lease", err)
		}
		time.Sleep(time.Minute)
		if got := strings.Join(history(t, store, second.group, "a"), ", "); got != "joined 1, preempted 1, joined 2" {
			t.Errorf("events: %s", got)
		}
		events, err := store.ReadJournal(t.Context(), second.group.MemberRun("a"), 2, 2)
		if err != nil || len(events) != 2 || !events[0].Time.Equal(events[1].Time) || events[0].Token != 2 {
			t.Errorf("events %+v, %v; want the end and the beginning in one step", events, err)
		}

		// An expired membership is taken over with the other reason.
		second.set(func(c *conn) { c.cut = true })
		time.Sleep(ttl)
		third := join(t, store, group.MemberSpec{Name: "a", TakeOver: true}, nil)
		synctest.Wait()
		if got := strings.Join(history(t, store, third.group, "a"), ", "); got != "joined 1, preempted 1, joined 2, expired 2, joined 3" {
			t.Errorf("events: %s", got)
		}
	})
}

// An operator's preemption of a member's lease is reported as such; the member does not count.
func TestPreemptedByAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		join(t, store, group.MemberSpec{Name: "b"}, nil)
		synctest.Wait()
		_, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: a.group.MemberRun("a"), Preempt: "it hangs", LeaseSpec: runstore.LeaseSpec{Owner: "operator", TTL: 20 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := names(t, a.group); !slices.Equal(got, []string{"b"}) {
			t.Errorf("members %v, want b", got)
		}
		if err := a.result(t); !lost(err) {
			t.Errorf("join: %v, want a lost lease", err)
		}
		time.Sleep(time.Minute)
		if got := strings.Join(history(t, store, a.group, "a"), ", "); got != "joined 1, preempted 1" {
			t.Errorf("events: %s", got)
		}
	})
}

// A lease that was revoked ends the membership as an expiry does.
func TestRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		join(t, store, group.MemberSpec{Name: "b"}, nil)
		synctest.Wait()
		release := runstore.NewBatch(a.group.MemberRun("a"), runstore.Unguarded("test"))
		release.Release = true
		if _, err := store.Commit(t.Context(), release); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := strings.Join(history(t, store, a.group, "a"), ", "); got != "joined 1, expired 1" {
			t.Errorf("events: %s", got)
		}
	})
}

// Watch yields the members at the start and after each change: at once after a write, and within
// 100 ms of an expiry.
func TestWatch(t *testing.T) {
	for _, tc := range []struct {
		name  string
		store runstore.RunStore
		late  time.Duration // how late a write may be noticed
	}{
		{"announced", memory.New(nil).Open(), 500 * time.Millisecond},
		{"polled", mute{memory.New(nil).Open()}, group.DefaultInterval},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var seen []string
				var at []time.Time
				ended := make(chan error)
				go func() {
					var last error
					for s, err := range open(t, tc.store, options()).Watch(ctx) {
						last = err
						var names []string
						for _, m := range s.Members {
							names = append(names, m.Name)
						}
						if err == nil {
							seen, at = append(seen, strings.Join(names, "+")), append(at, time.Now())
						}
					}
					ended <- last
				}()
				time.Sleep(time.Minute)
				a := join(t, tc.store, group.MemberSpec{Name: "a"}, nil)
				joined := time.Now()
				time.Sleep(time.Minute)
				b := join(t, tc.store, group.MemberSpec{Name: "b"}, nil)
				time.Sleep(time.Minute)
				b.set(func(c *conn) { c.cut = true })
				head, err := tc.store.GetRun(t.Context(), a.group.MemberRun("b"))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				left := time.Now()
				a.leave(t)
				time.Sleep(time.Minute)
				stop()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the iteration ended with %v, want the context's cause", err)
				}
				if want := []string{"", "a", "a+b", "a", ""}; !slices.Equal(seen, want) {
					t.Fatalf("seen %q, want %q", seen, want)
				}
				for i, want := range map[int]time.Time{1: joined, 4: left} {
					if late := at[i].Sub(want); late > tc.late {
						t.Errorf("change %d was seen after %v, want at most %v", i, late, tc.late)
					}
				}
				if late := at[3].Sub(head.ExpiresAt); late < 0 || late > 100*time.Millisecond {
					t.Errorf("the expiry was seen after %v, want 0 to 100 ms", late)
				}
				if err := b.result(t); !lost(err) {
					t.Errorf("join of the dead member: %v, want a lost lease", err)
				}
			})
		})
	}
}

// While the store cannot be reached, Watch waits. A closed store ends it.
func TestWatchWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		c := &conn{RunStore: store}
		var seen []int
		ended := make(chan error)
		go func() {
			var last error
			for s, err := range open(t, c, options()).Watch(t.Context()) {
				seen, last = append(seen, len(s.Members)), err
			}
			ended <- last
		}()
		synctest.Wait()
		c.set(func(c *conn) { c.cut = true })
		join(t, store, group.MemberSpec{Name: "a"}, nil).stop()
		time.Sleep(time.Hour)
		join(t, store, group.MemberSpec{Name: "b"}, nil)
		c.set(func(c *conn) { c.cut = false })
		time.Sleep(time.Minute)
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, runstore.ErrClosed) {
			t.Errorf("the iteration ended with %v, want ErrClosed", err)
		}
		// The last one is the error's.
		if !slices.Equal(seen, []int{0, 1, 0}) {
			t.Errorf("seen %v, want none, then one member, then the error", seen)
		}
	})
}

// Bad input is refused with the names of its fields.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", group.MaxName+1)
	_, err := group.New(memory.New(nil).Open(), "a/b", &group.Options{TTL: -1, Interval: -1, Hysteresis: -1, MaxInFlight: -1, ReleaseTimeout: -1})
	for _, field := range []string{"group", "ttl", "interval", "hysteresis", "max in flight", "release timeout"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name the field %q", err, field)
		}
	}
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	for _, tc := range []struct {
		name string
		want error
	}{{"", runstore.ErrInvalid}, {"\xff", runstore.ErrInvalid}, {long, runstore.ErrTooLarge}} {
		if _, err := group.New(memory.New(nil).Open(), tc.name, nil); !errors.Is(err, tc.want) {
			t.Errorf("group %q: %v, want %v", tc.name, err, tc.want)
		}
		g := open(t, memory.New(nil).Open(), nil)
		if err := g.Join(t.Context(), group.MemberSpec{Name: tc.name}, nil); !errors.Is(err, tc.want) {
			t.Errorf("member %q: %v, want %v", tc.name, err, tc.want)
		}
	}
	tooLarge := bytes.Repeat([]byte("x"), group.MaxAttributes+1)
	g := open(t, memory.New(nil).Open(), nil)
	if err := g.Join(t.Context(), group.MemberSpec{Name: "a", Attributes: tooLarge}, nil); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("attributes: %v, want ErrTooLarge", err)
	}
	err = g.Join(t.Context(), group.MemberSpec{Name: strings.Repeat("n", group.MaxName)}, func(ctx context.Context, m *group.Membership) error {
		if err := m.SetAttributes(ctx, tooLarge); !errors.Is(err, runstore.ErrTooLarge) {
			t.Errorf("attributes: %v, want ErrTooLarge", err)
		}
		for _, n := range []int{0, -1, group.MaxShards + 1} {
			if err := m.Shards(ctx, n, nil); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "shards") {
				t.Errorf("%d shards: %v, want ErrInvalid", n, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	longest, err := group.New(memory.New(nil).Open(), strings.Repeat("g", group.MaxName), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []runstore.RunID{longest.MemberRun(strings.Repeat("n", group.MaxName)), longest.ShardRun(group.MaxShards - 1)} {
		if err := runstore.CheckRunID(id); err != nil {
			t.Error(err)
		}
	}
}
