package cases

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Servers returns the cases that kill and freeze the server.
func Servers() []harness.Case {
	server := []harness.Need{harness.NeedServer}
	return []harness.Case{
		{Guarantee: "I8", Name: "a-killed-server-keeps-what-it-acknowledged-once", Needs: server, Run: killedServer, Doc: `
			The server is killed and restarted three times under three writers and a holder that preempts itself.
			Every acknowledged event is stored once, none that was reported as not applied is, tokens grow, no ended
			grant writes, and the feed equals the journals. A store that acknowledges before its server is durable,
			or forgets batch ids with it, fails.`},
		{Guarantee: "I11", Name: "a-frozen-server-does-not-outlive-the-context", Needs: server, Run: frozenServer, Doc: `
			The server is stopped with its connections open, while every read, writes of many kinds, and an open are
			called with a deadline. Each call returns soon after it with ErrUnavailable or ErrUnknownOutcome, and the
			results of the writes are true once the server resumes. A store that waits for the server without a bound
			hangs.`},
	}
}

func frozenServer(t harness.T, e *harness.Env) {
	t.Cleanup(func() { _ = e.Server.Thaw() }) // for a case that ends early
	outlast(t, e, e.Reopen(t), e.Open, e.Server.Freeze, e.Server.Thaw)
}

// killedServer opens no handle after a kill: the open handles must recover without help.
func killedServer(t harness.T, e *harness.Env) {
	const kills, progress = 3, 30
	ctx := t.Context()
	l := &serverLoad{outcomes: newOutcomes(), handles: kit.OpenHandles(t, e, 3)}
	for _, id := range l.runs() {
		e.Create(t, id)
	}
	var working sync.WaitGroup
	for i, s := range l.handles {
		working.Go(panics.Guarded(t, func() { l.write(t, s, i) }))
	}
	taker := e.Reopen(t)
	working.Go(panics.Guarded(t, func() { l.takeOver(t, taker) }))
	// advanced waits until n more writes of every side were acknowledged.
	advanced := func(n int64) {
		var reached [len(l.acknowledged)]int64
		for i := range reached {
			reached[i] = l.acknowledged[i].Load() + n
		}
		e.Await(t, harness.CaseTimeout, func() bool {
			for i := range reached {
				if l.acknowledged[i].Load() < reached[i] && !t.Failed() {
					return false
				}
			}
			return true
		})
	}
	stop := sync.OnceFunc(func() {
		l.stop.Store(true)
		working.Wait()
	})
	t.Cleanup(stop)
	for range kills {
		if advanced(progress); t.Failed() {
			break
		}
		if err := e.Server.Kill(); err != nil {
			t.Fatalf("kill the server: %v", err)
		}
		bound, cancel := context.WithTimeout(ctx, harness.CaseTimeout)
		err := e.Server.Restart(bound)
		cancel()
		if err != nil {
			t.Fatalf("start the server again: %v", err)
		}
		advanced(1)
	}
	stop()
	awaitWorking(t, e, e.Store)
	l.check(t, e)
}

// serverLoad is concurrent load on a server: what several sides write, and the results that they
// got.
type serverLoad struct {
	handles      []runstore.RunStore
	acknowledged [4]atomic.Int64 // by side: the writers, then the takeovers
	stop         atomic.Bool

	mu     sync.Mutex
	leases []runstore.Lease // of the run that is taken over, in order
	*outcomes
}

func (l *serverLoad) runs() []runstore.RunID {
	return []runstore.RunID{"run-0", "run-1", "run-2", "taken"}
}

// record records the result of a batch. It fails the case for an error that the end of a server
// does not explain.
func (l *serverLoad) record(t harness.T, side int, name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(name, err)
	switch kind := runstore.KindOf(err); kind {
	case nil:
		l.acknowledged[side].Add(1)
	case runstore.ErrUnavailable, runstore.ErrUnknownOutcome:
	default:
		t.Errorf("%s: got error %v, want none but ErrUnavailable and ErrUnknownOutcome", name, err)
	}
}

// write appends to one run until stop is set. It repeats a batch with an id whose outcome is
// unknown.
func (l *serverLoad) write(t harness.T, s runstore.RunStore, side int) {
	for n := 0; !l.stop.Load() && !t.Failed(); n++ {
		name := fmt.Sprintf("%d/%d", side, n)
		b := runstore.NewBatch(l.runs()[side], runstore.Unguarded("test"))
		if n%2 == 0 {
			b.ID = runstore.BatchID(name)
		}
		b.Append("event", []byte(name))
		_, err := s.Commit(t.Context(), b)
		for b.ID != "" && runstore.OutcomeOf(err) == runstore.Unknown && t.Context().Err() == nil {
			_, err = s.Commit(t.Context(), b)
		}
		l.record(t, side, name, err)
	}
}

// takeOver preempts one run's lease again and again and writes under each grant. After each
// takeover it also tries to write under the grant before, which has ended.
func (l *serverLoad) takeOver(t harness.T, s runstore.RunStore) {
	const side = 3
	for n := 0; !l.stop.Load() && !t.Failed(); n++ {
		lease, err := s.AcquireLease(t.Context(), kit.Preempting("taken", "taker", "test"))
		if err != nil {
			l.record(t, side, fmt.Sprintf("lease %d", n), err)
			continue
		}
		name := fmt.Sprintf("under %d", lease.Token)
		_, err = s.Commit(t.Context(), kit.Appending(lease.Lease, name))
		l.record(t, side, name, err)
		if last := len(l.leases) - 1; last >= 0 {
			old := l.leases[last]
			if lease.Token <= old.Token {
				t.Errorf("token %v was granted after %v", lease.Token, old.Token)
			}
			_, err := s.Commit(t.Context(), kit.Appending(old, "stale"))
			switch runstore.KindOf(err) {
			case runstore.ErrFenced, runstore.ErrUnavailable, runstore.ErrUnknownOutcome:
			default:
				t.Errorf("a write under token %v, after %v was granted: got error %v, want ErrFenced", old.Token, lease.Token, err)
			}
		}
		l.leases = append(l.leases, lease.Lease)
	}
}

// check compares the stored events with the results, run by run and in the feed.
func (l *serverLoad) check(t harness.T, e *harness.Env) {
	t.Helper()
	stored := map[string]int{}
	total := 0
	for _, id := range l.runs() {
		events := kit.Journal(t, e.Store, id)
		dense(t, events)
		total += len(events)
		for i, event := range events {
			name := string(event.Data)
			if stored[name]++; name == "stale" {
				t.Errorf("run %q: seq %d is a write of a grant that was over", id, event.Seq)
			}
			if i > 0 && event.Token < events[i-1].Token {
				t.Errorf("run %q: seq %d is under token %v, after one under %v", id, event.Seq, event.Token, events[i-1].Token)
			}
		}
	}
	l.compare(t, stored)
	fed := map[string]int{}
	for _, event := range kit.FeedOf(t, e, e.Store, total) {
		fed[string(event.Data)]++
	}
	kit.Equal(t, "events by the feed, and by the journals", fed, stored)
	t.Logf("%d applied, %d not applied, %d unknown, %d grants", len(l.applied), len(l.refused), len(l.unknown), len(l.leases))
}
