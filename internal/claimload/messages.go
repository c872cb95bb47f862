package claimload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
)

// maxAttempts is the MaxAttempts of the load's queue.
const maxAttempts = 4

// messages is what the workers know of all messages.
type messages struct {
	load Load
	t    T

	mu    sync.Mutex
	clock int // counts what is recorded, to order it
	byID  map[string]*message
	lost  int // refused ends of claims
}

type message struct {
	put    runstore.Outcome
	claims []*claimed
	// drained is the number of times that the message was claimed after the load.
	drained int
	dead    *claim.DeadLetter
}

// claimed is a claim as its consumer knows it.
type claimed struct {
	receipt claim.Receipt
	begin   time.Time // on the store clock
	expires time.Time // on the store clock, as last extended
	got     time.Time // when the consumer had it, on its clock
	lasts   time.Time // the claim lasted at least until this time of the consumer's clock
	at      int       // got, in the order of what is recorded
	// ends are the calls that end the claim, with their outcomes: at most one of them is applied.
	ends map[string]*ended
}

type ended struct {
	at      int // when the first of its attempts began
	outcome runstore.Outcome
}

// Messages puts messages into a queue and consumes them.
func Messages(t T, l Load, shards int) {
	t.Helper()
	m := &messages{load: l, t: t, byID: map[string]*message{}}
	opts := &claim.QueueOptions{Shards: shards, MaxAttempts: maxAttempts, Remember: time.Hour, Logger: quiet}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	l.run(t, func(w worker) {
		var q *claim.Queue
		if _, err := w.insist(func() (err error) { q, err = claim.OpenQueue(ctx, w.store, "load", opts); return err }); err != nil {
			return // a worker that cannot begin is a worker that died
		}
		for round := range l.Rounds {
			m.produce(ctx, w, q, fmt.Sprintf("%d/%d", w.n, round))
			m.consume(ctx, w, q)
		}
	})
	q, err := claim.OpenQueue(ctx, l.Stores[0], "load", opts)
	if err != nil {
		t.Fatalf("open the queue after the load: %v", err)
	}
	m.drain(ctx, q)
	m.check()
}

// record runs f under the lock and returns its place in the order of what is recorded.
func (m *messages) record(f func(at int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	f(m.clock)
}

func (m *messages) produce(ctx context.Context, w worker, q *claim.Queue, id string) {
	msg := &message{}
	m.record(func(int) { m.byID[id] = msg })
	outcome, err := w.insist(func() error {
		_, err := q.Put(ctx, id, []byte(id), &claim.PutOptions{Delay: time.Duration(w.random.Int64N(int64(m.load.TTL)))})
		return err
	})
	if outcome == runstore.NotApplied && runstore.KindOf(err) != runstore.ErrUnavailable {
		m.t.Errorf("put %s: %v", id, err)
	}
	m.record(func(int) { msg.put = outcome })
}

// consume claims some messages and treats each in one of several ways.
func (m *messages) consume(ctx context.Context, w worker, q *claim.Queue) {
	called := time.Now()
	receipts, err := q.Claim(ctx, runstore.Owner(fmt.Sprint("worker ", w.n)), 1+w.random.IntN(5), m.load.TTL)
	if kind := runstore.KindOf(err); err != nil && kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome {
		m.t.Errorf("claim: %v", err)
	}
	var mine []*claimed
	m.record(func(at int) {
		for _, r := range receipts {
			c := &claimed{
				receipt: r, begin: r.Expires.Add(-m.load.TTL), expires: r.Expires,
				got: time.Now(), lasts: called.Add(m.load.TTL), at: at, ends: map[string]*ended{},
			}
			mine = append(mine, c)
			msg := m.byID[r.ID]
			if msg == nil || string(r.Payload) != r.ID {
				m.t.Errorf("claimed %q with the payload %q, which nobody put", r.ID, r.Payload)
				continue
			}
			msg.claims = append(msg.claims, c)
		}
	})
	if len(mine) == 0 {
		w.pause(m.load.TTL)
	}
	for _, c := range mine {
		r := c.receipt
		w.pause(2 * m.load.TTL / time.Duration(len(mine)))
		if w.random.IntN(4) == 0 {
			called := time.Now()
			next, err := q.Extend(ctx, r, m.load.TTL)
			if err == nil {
				m.record(func(int) { c.expires, c.lasts = next.Expires, called.Add(m.load.TTL) })
				if w.random.IntN(2) == 0 {
					r = next
				}
			}
			w.pause(m.load.TTL)
		}
		for range 1 + w.random.IntN(2) { // some end a claim in two ways
			m.end(ctx, w, q, c, r)
		}
	}
}

// end ends a claim in one of several ways, or abandons it.
func (m *messages) end(ctx context.Context, w worker, q *claim.Queue, c *claimed, r claim.Receipt) {
	var op string
	var call func() error
	switch w.random.IntN(8) {
	case 0:
		op, call = "nack", func() error { return q.Nack(ctx, r, time.Duration(w.random.Int64N(int64(m.load.TTL))), "failed") }
	case 1:
		op, call = "release", func() error { return q.Release(ctx, r) }
	case 2:
		return // the consumer dies
	case 3:
		op, call = "bury", func() error { return q.Bury(ctx, r, "buried") }
	default:
		op, call = "ack", func() error { return q.Ack(ctx, r) }
	}
	if c.ends[op] != nil {
		return
	}
	e := &ended{}
	m.record(func(at int) { e.at, c.ends[op] = at, e })
	outcome, err := w.insist(call)
	if kind := runstore.KindOf(err); err != nil && kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome && !errors.Is(err, claim.ErrLost) {
		m.t.Errorf("%s: %v", op, err)
	}
	m.record(func(int) {
		e.outcome = outcome
		if errors.Is(err, claim.ErrLost) {
			m.lost++
		}
	})
}

// drain acknowledges every message that is left, and reads the dead letters.
func (m *messages) drain(ctx context.Context, q *claim.Queue) {
	// Every claim has expired and every delay is over after this time.
	for end := m.now(ctx).Add(3 * m.load.TTL); ; {
		receipts, err := q.Claim(ctx, "drain", claim.MaxClaim, time.Minute)
		if err != nil {
			m.t.Fatalf("claim after the load: %v", err)
		}
		for _, r := range receipts {
			msg := m.byID[r.ID]
			if msg == nil {
				m.t.Fatalf("claimed %q after the load, which nobody put", r.ID)
			}
			msg.drained++
			if err := q.Ack(ctx, r); err != nil {
				m.t.Errorf("ack %s after the load: %v", r.ID, err)
			}
		}
		if len(receipts) == 0 {
			if m.now(ctx).After(end) {
				break
			}
			time.Sleep(m.load.TTL / 4)
		}
	}
	for letter, err := range q.Dead(ctx) {
		if err != nil {
			m.t.Fatalf("read the dead letters: %v", err)
		}
		msg := m.byID[letter.ID]
		if msg == nil {
			m.t.Fatalf("dead letter %q, which nobody put", letter.ID)
		}
		msg.dead = &letter
	}
	for e, err := range runstore.Entries(ctx, m.load.Stores[0], runstore.IndexQuery{Index: "claim.due/load", Until: runstore.EndOfTime}) {
		if err != nil {
			m.t.Fatalf("scan after the load: %v", err)
		}
		m.t.Errorf("%q is in the queue after the load", e.Record.Key)
	}
}

func (m *messages) now(ctx context.Context) time.Time {
	now, err := m.load.Stores[0].Now(ctx)
	if err != nil {
		m.t.Fatalf("read the clock: %v", err)
	}
	return now
}

// check compares what the workers know with the guarantees.
func (m *messages) check() {
	claims, acked, dead := 0, 0, 0
	for id, msg := range m.byID {
		slices.SortFunc(msg.claims, func(a, b *claimed) int { return cmp.Compare(a.receipt.Version(), b.receipt.Version()) })
		claims += len(msg.claims)
		for i, c := range msg.claims {
			if i > 0 {
				m.checkNext(id, msg.claims[i-1], c)
			}
			m.checkEnds(id, msg, i)
		}
		if msg.dead != nil {
			dead++
		}
		acked += m.checkFate(id, msg)
	}
	m.t.Logf("%d messages, %d claims, %d acknowledged, %d dead, %d refused ends", len(m.byID), claims, acked, dead, m.lost)
}

// checkNext checks two claims of a message of which the workers know none in between.
func (m *messages) checkNext(id string, a, b *claimed) {
	maybe := func(op string) bool { return a.ends[op] != nil && a.ends[op].outcome != runstore.NotApplied }
	switch {
	case a.receipt.Version() == b.receipt.Version():
		m.t.Errorf("%s: two claims of version %d", id, a.receipt.Version())
	case !maybe("nack") && !maybe("release") && (m.load.Exact && b.begin.Before(a.expires) || b.got.Before(a.lasts)):
		m.t.Errorf("%s: claimed at %v while the claim of attempt %d lived until %v", id, b.begin, a.receipt.Attempts, a.expires)
	case !maybe("release") && b.receipt.Attempts <= a.receipt.Attempts, b.receipt.Attempts < a.receipt.Attempts:
		m.t.Errorf("%s: attempt %d after attempt %d", id, b.receipt.Attempts, a.receipt.Attempts)
	case b.receipt.Attempts > maxAttempts:
		m.t.Errorf("%s: attempt %d of %d", id, b.receipt.Attempts, maxAttempts)
	}
}

// checkEnds checks that at most one end of a claim was applied, that no message was claimed after an
// ack or a burial, and that no end was applied after a later claim.
func (m *messages) checkEnds(id string, msg *message, i int) {
	c, applied := msg.claims[i], 0
	for op, e := range c.ends {
		if e.outcome != runstore.Applied {
			continue
		}
		applied++
		for _, later := range msg.claims[i+1:] {
			if op == "ack" || op == "bury" {
				m.t.Errorf("%s: attempt %d was claimed after the %s of attempt %d", id, later.receipt.Attempts, op, c.receipt.Attempts)
			}
			if later.at < e.at {
				m.t.Errorf("%s: the %s of attempt %d was applied after attempt %d had begun", id, op, c.receipt.Attempts, later.receipt.Attempts)
			}
		}
	}
	if applied > 1 {
		m.t.Errorf("%s: %d ends of attempt %d were applied", id, applied, c.receipt.Attempts)
	}
}

// checkFate checks that a message is in exactly one place at the end. It returns 1 for one that was
// acknowledged.
func (m *messages) checkFate(id string, msg *message) int {
	acked, maybeAcked, maybeBuried := 0, false, false
	for _, c := range msg.claims {
		if e := c.ends["ack"]; e != nil {
			maybeAcked = maybeAcked || e.outcome != runstore.NotApplied
			if e.outcome == runstore.Applied {
				acked++
			}
		}
		if e := c.ends["bury"]; e != nil && e.outcome != runstore.NotApplied {
			maybeBuried = true
		}
	}
	places := acked + msg.drained
	if msg.dead != nil {
		places++
	}
	switch {
	case places > 1:
		m.t.Errorf("%s: acknowledged %d times, left %d times, dead %v", id, acked, msg.drained, msg.dead != nil)
	case places == 0 && msg.put == runstore.Applied && !maybeAcked:
		m.t.Errorf("%s: lost after %d claims", id, len(msg.claims))
	case places+len(msg.claims) > 0 && msg.put == runstore.NotApplied:
		m.t.Errorf("%s: found, but its put was refused", id)
	case msg.dead != nil && msg.dead.Attempts < maxAttempts && !maybeBuried:
		m.t.Errorf("%s: dead after %d attempts: %s", id, msg.dead.Attempts, msg.dead.Reason)
	}
	return acked
}
