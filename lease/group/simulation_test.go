package group_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// witness records how each grant of a run ended, as the store says with the next grant.
type witness struct {
	runstore.RunStore
	mu    sync.Mutex
	ended map[runstore.RunID]map[runstore.Token]runstore.GrantEnd
}

// Unwrap gives access to the store's announcements.
func (w *witness) Unwrap() runstore.RunStore { return w.RunStore }

func (w *witness) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	g, err := w.RunStore.AcquireLease(ctx, r)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended[r.Run] == nil {
			w.ended[r.Run] = map[runstore.Token]runstore.GrantEnd{}
		}
		w.ended[r.Run][g.Token-1] = g.Former
	}
	return g, err
}

// simulation is a group whose processes join, leave, die, are paused and lose replies at random.
type simulation struct {
	*ledger
	witness  *witness
	observer *group.Group // without faults
	all      []*process
	names    []string
	n        int
}

// process is one process of a simulation.
type process struct {
	*member
	name            string
	paused, stopped bool
}

// running reports whether the process takes part, or waits to.
func (p *process) running() bool { return !p.stopped && len(p.ended) == 0 }

func (s *simulation) start(name string, takeOver bool) {
	id := fmt.Sprint(name, "#", len(s.all))
	c := &conn{RunStore: s.store, latency: 2 * time.Millisecond}
	m := joinThrough(s.t, c, group.MemberSpec{Name: name, TakeOver: takeOver}, s.shards(id, c, s.n))
	s.all = append(s.all, &process{member: m, name: name})
}

// pick returns a random process that runs, or nil.
func (s *simulation) pick() *process {
	var running []*process
	for _, p := range s.all {
		if p.running() {
			running = append(running, p)
		}
	}
	if len(running) == 0 {
		return nil
	}
	return running[rand.N(len(running))]
}

// disturb does something at random.
func (s *simulation) disturb() {
	what, p := rand.N(10), s.pick()
	switch {
	case what < 4 || p == nil:
		s.start(s.names[rand.N(len(s.names))], rand.N(3) == 0)
	case what < 6:
		p.stopped = true
		p.stop()
	case what == 6:
		p.stopped = true
		p.set(func(c *conn) { c.cut = true })
	case what == 7 && !p.paused:
		p.paused = true
		p.pause()
	default:
		p.set(func(c *conn) { c.loss = 0.05 })
	}
	for _, p := range s.all {
		if p.paused && rand.N(3) == 0 {
			p.paused = false
			p.resume()
		}
	}
}

// heal ends the faults of all processes that have not been killed, and starts processes until k names
// are running.
func (s *simulation) heal(k int) {
	running := map[string]bool{}
	for _, p := range s.all {
		if p.paused {
			p.paused = false
			p.resume()
		}
		p.set(func(c *conn) { c.loss = 0 })
	}
	time.Sleep(3 * ttl) // those that have lost their membership end
	for _, p := range s.all {
		if p.running() {
			running[p.name] = true
		}
	}
	for _, name := range s.names {
		if len(running) < k && !running[name] {
			running[name] = true
			s.start(name, false)
		}
	}
	time.Sleep(2 * ttl)
}

// checkOwned waits until every shard has a live owner whose loads are balanced, for at most d.
func (s *simulation) checkOwned(d time.Duration) {
	s.t.Helper()
	g := s.observer
	for deadline := time.Now().Add(d); ; time.Sleep(50 * time.Millisecond) {
		loads := map[string]int{}
		for _, owner := range s.owners(g, s.n) {
			loads[owner]++
		}
		members := names(s.t, g)
		good := loads[""] == 0 && len(loads) == min(len(members), s.n)
		for _, load := range loads {
			good = good && load >= s.n/len(members) && load <= (s.n+len(members)-1)/len(members)
		}
		if good {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("loads %v of the members %v after %v", loads, members, d)
		}
	}
}

// checkEnds checks that each membership that is over has exactly one event with the right reason.
func (s *simulation) checkEnds() (ends map[group.Reason]int) {
	s.t.Helper()
	ends = map[group.Reason]int{}
	g := s.observer
	live := map[string]runstore.Token{}
	snapshot, err := g.Members(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range snapshot.Members {
		live[m.Name] = m.Token
	}
	for _, name := range s.names {
		joined, ended := map[runstore.Token]int{}, map[runstore.Token]int{}
		for e, err := range runstore.Journal(s.t.Context(), s.store, g.MemberRun(name), 1) {
			switch {
			case errors.Is(err, runstore.ErrNotFound):
			case err != nil:
				s.t.Fatal(err)
			case e.Kind == group.EventJoined:
				joined[e.Token]++
			default:
				var end group.Ended
				if err := json.Unmarshal(e.Data, &end); err != nil {
					s.t.Fatal(err)
				}
				ended[end.Token]++
				ends[end.Reason]++
				s.witness.mu.Lock()
				truth := s.witness.ended[g.MemberRun(name)][end.Token]
				s.witness.mu.Unlock()
				if !slices.Contains(map[group.Reason][]runstore.GrantEnd{
					group.Released:  {runstore.EndReleased, runstore.EndNone},     // none: there was no later grant
					group.Expired:   {runstore.EndExpired, runstore.EndRevoked},   // revoked by a keeper that had lost its trust
					group.Preempted: {runstore.EndPreempted, runstore.EndExpired}, // expired after the takeover had found it live
				}[end.Reason], truth) {
					s.t.Errorf("membership %v of %q: the reason is %v, the store says %v", end.Token, name, end.Reason, truth)
				}
			}
		}
		for token, times := range joined {
			want := 1
			if live[name] == token {
				want = 0
			}
			if times != 1 || ended[token] != want {
				s.t.Errorf("membership %v of %q: %d begins, %d ends, want 1 and %d", token, name, times, ended[token], want)
			}
		}
		if len(ended) > len(joined) {
			s.t.Errorf("%q: ends %v of the memberships %v", name, ended, joined)
		}
	}
	return ends
}

// Random histories: at no time do two processes trust a lease of the same shard, nor does the store
// accept the writes of two; each membership ends with one event and the right reason; after the last
// fault every shard has an owner, the loads are balanced, and when a worker is killed every shard has
// an owner again within TTL + 2 s, with no more moves than the dead worker had shards.
func TestRandomHistories(t *testing.T) {
	seeds := effort.Choose(2, 20)
	if !effort.Full() {
		t.Logf("reduced: %d of 20 histories", seeds)
	}
	for range seeds {
		synctest.Test(t, func(t *testing.T) {
			store := &witness{RunStore: memory.New(nil).Open(), ended: map[runstore.RunID]map[runstore.Token]runstore.GrantEnd{}}
			s := &simulation{ledger: newLedger(t, store), witness: store, observer: open(t, store, options()), names: []string{"a", "b", "c", "d", "e"}, n: 12 + rand.N(20)}
			s.start("a", false)
			for range 2 {
				for range 30 {
					time.Sleep(rand.N(8 * time.Second))
					s.disturb()
				}
				s.heal(2)
				s.checkOwned(5 * time.Second)
				g := s.observer
				k, changes := len(names(t, g)), len(s.changes(g))
				victim := s.pick()
				for !slices.Contains(s.owners(g, s.n), fmt.Sprint(victim.name, "#", slices.Index(s.all, victim))) {
					victim = s.pick() // that one waits for its name
				}
				if slices.ContainsFunc(s.all, func(p *process) bool { return p != victim && p.name == victim.name && p.running() }) {
					continue // another process continues under its name
				}
				victim.stopped = true
				victim.set(func(c *conn) { c.cut = true })
				time.Sleep(bound)
				if owners := s.owners(g, s.n); count(owners, "") > 0 {
					t.Fatalf("owners %v within the TTL and 2 s", owners)
				}
				s.checkOwned(0)
				after := s.changes(g)
				if len(after) != changes+1 || after[changes].Moved > (s.n+k-1)/k {
					t.Errorf("changes %+v, want one with at most %d of %d shards moved", after[changes:], (s.n+k-1)/k, s.n)
				}
			}
			time.Sleep(10 * time.Second)
			writes := s.checkJournals(s.observer, s.n)
			t.Logf("%d processes, %d starts of work, %d writes, %d changes, ends: %v", len(s.all), s.starts, writes, len(s.changes(s.observer)), s.checkEnds())
		})
	}
}
