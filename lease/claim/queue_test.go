package claim_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func open(t *testing.T, s runstore.RunStore, o claim.QueueOptions) *claim.Queue {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	q, err := claim.OpenQueue(t.Context(), s, "mail", &o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func put(t *testing.T, q *claim.Queue, id string, want bool) {
	t.Helper()
	added, err := q.Put(t.Context(), id, []byte("payload of "+id), nil)
	if err != nil || added != want {
		t.Fatalf("put %q: added %v, %v; want %v", id, added, err, want)
	}
}

// claimOne claims the only message that is due.
func claimOne(t *testing.T, q *claim.Queue, owner runstore.Owner, ttl time.Duration) claim.Receipt {
	t.Helper()
	all := claimAll(t, q, owner, ttl)
	if len(all) != 1 {
		t.Fatalf("%s claimed %d messages, want 1", owner, len(all))
	}
	return all[0]
}

func claimAll(t *testing.T, q *claim.Queue, owner runstore.Owner, ttl time.Duration) []claim.Receipt {
	t.Helper()
	all, err := q.Claim(t.Context(), owner, 100, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func wantNone(t *testing.T, q *claim.Queue) {
	t.Helper()
	if all := claimAll(t, q, "other", time.Minute); len(all) > 0 {
		t.Fatalf("claimed %d messages, want none", len(all))
	}
}

func wantLost(t *testing.T, err error, found string) {
	t.Helper()
	var lost *claim.LostError
	if !errors.As(err, &lost) || lost.Found != found || !errors.Is(err, claim.ErrLost) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("got %v, want the loss of a claim that is %s", err, found)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func letters(t *testing.T, q *claim.Queue) (all []string) {
	t.Helper()
	for l, err := range q.Dead(t.Context()) {
		must(t, err)
		all = append(all, fmt.Sprintf("%s after %d: %s", l.ID, l.Attempts, l.Reason))
	}
	return all
}

// A claimed message is invisible until the claim expires. Then another consumer gets it, as the next
// attempt, and the late ack of the first is refused.
func TestLateAckIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil)
		a, b := open(t, s.Open(), claim.QueueOptions{}), open(t, s.Open(), claim.QueueOptions{})
		put(t, a, "m", true)
		first := claimOne(t, a, "a", time.Minute)
		if first.Attempts != 1 || string(first.Payload) != "payload of m" || !first.Expires.Equal(time.Now().Add(time.Minute)) || !first.PutAt.Equal(time.Now()) {
			t.Errorf("receipt %+v", first)
		}
		time.Sleep(time.Minute - time.Microsecond)
		wantNone(t, b)
		time.Sleep(time.Microsecond)
		second := claimOne(t, b, "b", time.Minute)
		if second.Attempts != 2 || second.Version() <= first.Version() {
			t.Errorf("second claim %+v, version %d after %d", second, second.Version(), first.Version())
		}
		for name, end := range map[string]func() error{
			"ack": func() error { return a.Ack(t.Context(), first) }, "nack": func() error { return a.Nack(t.Context(), first, 0, "") },
			"bury": func() error { return a.Bury(t.Context(), first, "") }, "release": func() error { return a.Release(t.Context(), first) },
			"extend": func() error { _, err := a.Extend(t.Context(), first, time.Minute); return err },
			"ack after extend": func() error {
				r, err := a.Extend(t.Context(), first, time.Minute)
				wantLost(t, err, "claimed again")
				return a.Ack(t.Context(), r)
			},
		} {
			err := end()
			wantLost(t, err, "claimed again")
			if !strings.Contains(fmt.Sprint(err), `"b"`) {
				t.Errorf("%s: %v does not name the owner", name, err)
			}
		}
		must(t, b.Ack(t.Context(), second))
		time.Sleep(time.Hour)
		wantNone(t, a)
	})
}

// The ack of an expired claim counts while no other consumer has claimed the message.
func TestLateAckCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{})
		put(t, q, "m", true)
		r := claimOne(t, q, "a", time.Second)
		time.Sleep(time.Hour)
		r, err := q.Extend(t.Context(), r, time.Second)
		must(t, err)
		wantNone(t, q)
		time.Sleep(time.Hour)
		must(t, q.Ack(t.Context(), r))
		wantNone(t, q)
	})
}

// An extension moves the end of a claim, and every receipt of the claim stays valid.
func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{})
		put(t, q, "m", true)
		old := claimOne(t, q, "a", time.Minute)
		r := old
		for range 3 {
			time.Sleep(50 * time.Second)
			var err error
			r, err = q.Extend(t.Context(), old, time.Minute) // the first receipt each time
			must(t, err)
			if !r.Expires.Equal(time.Now().Add(time.Minute)) || r.Version() != old.Version() {
				t.Errorf("extended to %v under version %d, want a minute and version %d", r.Expires, r.Version(), old.Version())
			}
			wantNone(t, q)
		}
		must(t, q.Ack(t.Context(), old))
		wantLost(t, q.Nack(t.Context(), r, 0, ""), "acknowledged")
		_, err := q.Extend(t.Context(), r, time.Minute)
		wantLost(t, err, "acknowledged")
	})
}

// What counts as an attempt: each claim but a released one.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{})
		put(t, q, "m", true)
		attempt := func(want int) claim.Receipt {
			t.Helper()
			r := claimOne(t, q, "a", time.Minute)
			if r.Attempts != want {
				t.Fatalf("attempt %d, want %d", r.Attempts, want)
			}
			return r
		}
		must(t, q.Release(t.Context(), attempt(1)))
		r := attempt(1)
		must(t, q.Nack(t.Context(), r, time.Minute, "no route"))
		wantLost(t, q.Ack(t.Context(), r), "given back")
		wantNone(t, q)
		time.Sleep(time.Minute)
		if r = attempt(2); r.Reason != "no route" {
			t.Errorf("reason %q, want that of the nack", r.Reason)
		}
		_, err := q.Extend(t.Context(), r, time.Second)
		must(t, err)
		time.Sleep(time.Second)
		r = attempt(3) // by the expiry
		must(t, q.Ack(t.Context(), r))
	})
}

// After the last attempt a message is a dead letter: by a nack, by the expiry of its claim, or at
// once. A dead letter is redriven or discarded.
func TestDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{MaxAttempts: 2})
		end := func(id string, f func(r claim.Receipt)) {
			put(t, q, id, true)
			f(claimOne(t, q, "a", time.Second))
		}
		end("nacked", func(r claim.Receipt) {
			must(t, q.Nack(t.Context(), r, 0, "first"))
			must(t, q.Nack(t.Context(), claimOne(t, q, "a", time.Second), 0, "second"))
			if got := letters(t, q); len(got) != 1 {
				t.Errorf("dead letters %q after the nack of the last attempt, want one", got)
			}
		})
		end("expired", func(r claim.Receipt) {
			must(t, q.Nack(t.Context(), r, 0, "first"))
			r = claimOne(t, q, "a", time.Second)
			time.Sleep(time.Second)
			if got := letters(t, q); len(got) != 1 {
				t.Errorf("dead letters %q, want only the nacked one before a claim finds the other", got)
			}
			wantNone(t, q)
			wantLost(t, q.Ack(t.Context(), r), "a dead letter")
		})
		end("buried", func(r claim.Receipt) { must(t, q.Bury(t.Context(), r, "malformed")) })
		got := strings.Join(letters(t, q), "\n")
		for _, want := range []string{"nacked after 2: second", `expired after 2: the claim of attempt 2 by "a" expired; before: first`, "buried after 1: malformed"} {
			if !strings.Contains(got, want) {
				t.Errorf("dead letters:\n%s\nwant %s", got, want)
			}
		}
		for _, id := range []string{"nacked", "expired", "buried"} {
			put(t, q, id, false) // a dead letter keeps its id
		}

		put(t, q, "alive", true)
		if err := q.Discard(t.Context(), "alive"); !errors.Is(err, claim.ErrNotDead) {
			t.Errorf("discard of a message that is alive: %v", err)
		}
		must(t, q.Redrive(t.Context(), "alive"))
		must(t, q.Ack(t.Context(), claimOne(t, q, "a", time.Second)))
		for range 2 { // the second call is a repeat
			must(t, q.Redrive(t.Context(), "nacked"))
			must(t, q.Discard(t.Context(), "buried"))
		}
		r := claimOne(t, q, "a", time.Second)
		if r.ID != "nacked" || r.Attempts != 1 || r.Reason != "second" || time.Since(r.PutAt) == 0 {
			t.Errorf("redriven: %+v", r)
		}
		must(t, q.Ack(t.Context(), r))
		for _, id := range []string{"nacked", "absent", "buried"} {
			if err := q.Redrive(t.Context(), id); !errors.Is(err, claim.ErrNoMessage) || runstore.KindOf(err) != runstore.ErrNotFound {
				t.Errorf("redrive of %q: %v, want ErrNoMessage", id, err)
			}
		}
		if got := letters(t, q); len(got) != 1 {
			t.Errorf("dead letters %q, want the expired one", got)
		}
	})
}

// A put of the id of an acknowledged message adds nothing for as long as the id is remembered.
func TestPutIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{Remember: time.Minute})
		for range 3 {
			put(t, q, "m", true)
			put(t, q, "m", false)
			r := claimOne(t, q, "a", time.Second)
			put(t, q, "m", false)
			must(t, q.Ack(t.Context(), r))
			time.Sleep(time.Minute - time.Microsecond)
			put(t, q, "m", false)
			time.Sleep(time.Microsecond)
		}
		forgetful := open(t, memory.New(nil).Open(), claim.QueueOptions{Remember: -1})
		put(t, forgetful, "m", true)
		must(t, forgetful.Ack(t.Context(), claimOne(t, forgetful, "a", time.Second)))
		put(t, forgetful, "m", true)
	})
}

// Messages come in the order in which they became due.
func TestOrderAndDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, memory.New(nil).Open(), claim.QueueOptions{Shards: 4})
		for i := range 20 {
			_, err := q.Put(t.Context(), fmt.Sprintf("m%02d", i), nil, &claim.PutOptions{Delay: time.Duration(20-i) * time.Second})
			must(t, err)
		}
		time.Sleep(10 * time.Second)
		first := claimAll(t, q, "a", time.Hour)
		time.Sleep(10 * time.Second)
		var got []string
		for _, r := range append(first, claimAll(t, q, "a", time.Hour)...) {
			got = append(got, r.ID)
		}
		want := "m19 m18 m17 m16 m15 m14 m13 m12 m11 m10 m09 m08 m07 m06 m05 m04 m03 m02 m01 m00"
		if len(first) != 10 || strings.Join(got, " ") != want {
			t.Errorf("%d messages first, then in all: %v", len(first), got)
		}
	})
}

// The ids of acknowledged messages do not accumulate.
func TestIdsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil).Open()
		q := open(t, s, claim.QueueOptions{Shards: 1, Remember: time.Minute})
		most := 0
		for i := range 5000 { // ten a second: 600 are to be remembered
			put(t, q, fmt.Sprint("m", i), true)
			must(t, q.Ack(t.Context(), claimOne(t, q, "a", time.Second)))
			time.Sleep(100 * time.Millisecond)
			if i%50 == 0 {
				n := 0
				for _, err := range runstore.Records(t.Context(), s, "claim/queue/mail/0", "done/") {
					must(t, err)
					n++
				}
				most = max(most, n)
			}
		}
		t.Logf("at most %d ids of 600 to remember", most)
		if most < 600 || most > 2500 {
			t.Errorf("at most %d ids, want 600 and about a third more, where nothing is forgotten 5000", most)
		}
	})
}
