package group_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
)

// ledger records which processes work on which shards, and checks that no two of them trust their
// lease of the same shard.
type ledger struct {
	t      *testing.T
	store  runstore.RunStore // without faults
	mu     sync.Mutex
	active map[int]map[*lease.Held]string // by shard; the value is the process
	starts int
	causes []error // the causes of the ends of work
}

func newLedger(t *testing.T, store runstore.RunStore) *ledger {
	return &ledger{t: t, store: store, active: map[int]map[*lease.Held]string{}}
}

// shards is work of a member that shares n shards: each shard's work commits an event every 400 ms,
// through the member's connection, until its context ends. Commits are what the tests spend their time
// with. Two owners that trust their lease are noticed when the second one begins, however rare they are.
func (l *ledger) shards(process string, c runstore.RunStore, n int) func(context.Context, *group.Membership) error {
	return func(ctx context.Context, m *group.Membership) error {
		return m.Shards(ctx, n, func(ctx context.Context, held *lease.Held, shard int) error {
			l.begin(shard, held, process)
			defer l.end(ctx, shard, held)
			for ctx.Err() == nil {
				if err := l.write(ctx, c, process, shard, held); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
				case <-time.After(400 * time.Millisecond):
				}
			}
			return context.Cause(ctx)
		})
	}
}

func (l *ledger) begin(shard int, held *lease.Held, process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active[shard] == nil {
		l.active[shard] = map[*lease.Held]string{}
	}
	l.active[shard][held] = process
	l.starts++
	l.exclusive(shard)
}

func (l *ledger) end(ctx context.Context, shard int, held *lease.Held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.active[shard], held)
	l.causes = append(l.causes, context.Cause(ctx))
}

// exclusive checks that at most one process trusts its lease of a shard.
func (l *ledger) exclusive(shard int) {
	var trusting []string
	for held, process := range l.active[shard] {
		if _, ok := held.Trusted(); ok {
			trusting = append(trusting, process)
		}
	}
	if len(trusting) > 1 {
		l.t.Errorf("shard %d has %d owners that trust their lease: %q", shard, len(trusting), trusting)
	}
}

// write commits an event. Errors of the connection are ignored.
func (l *ledger) write(ctx context.Context, c runstore.RunStore, process string, shard int, held *lease.Held) error {
	b := runstore.NewBatch(held.Fence().Run(), held.Fence())
	b.Append("write", []byte(process))
	_, err := c.Commit(context.WithoutCancel(ctx), b) // the write of a paused process arrives late
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exclusive(shard)
	if kind := runstore.KindOf(err); kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome {
		return nil
	}
	return err
}

// owners returns the process that works on each shard under a live lease, "" for none.
func (l *ledger) owners(g *group.Group, n int) []string {
	l.t.Helper()
	now, err := l.store.Now(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	all := make([]string, n)
	for shard := range n {
		head, err := l.store.GetRun(l.t.Context(), g.ShardRun(shard))
		if errors.Is(err, runstore.ErrNotFound) {
			continue
		} else if err != nil {
			l.t.Fatal(err)
		}
		l.mu.Lock()
		for held, process := range l.active[shard] {
			if head.Live(now) && held.Fence().Token() == head.Holder.Token {
				all[shard] = process
			}
		}
		l.mu.Unlock()
	}
	return all
}

// checkJournals checks that each shard's writes are in the order of the tokens, and those of one token
// by one process.
func (l *ledger) checkJournals(g *group.Group, n int) (writes int) {
	l.t.Helper()
	for shard := range n {
		last, by := runstore.Token(0), map[runstore.Token]string{}
		for e, err := range runstore.Journal(l.t.Context(), l.store, g.ShardRun(shard), 1) {
			if err != nil {
				l.t.Fatal(err)
			}
			if e.Token < last || by[e.Token] != "" && by[e.Token] != string(e.Data) {
				l.t.Errorf("shard %d: event %d of %q under token %v comes after one of %q under token %v", shard, e.Seq, e.Data, e.Token, by[last], last)
			}
			last, by[e.Token] = e.Token, string(e.Data)
			writes++
		}
	}
	return writes
}

// changes returns the changes of the assignment.
func (l *ledger) changes(g *group.Group) (all []group.Rebalanced) {
	l.t.Helper()
	for e, err := range runstore.Journal(l.t.Context(), l.store, g.Run(), 1) {
		if err != nil {
			l.t.Fatal(err)
		}
		var r group.Rebalanced
		if err := json.Unmarshal(e.Data, &r); err != nil {
			l.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// worker starts a member that shares n shards; process distinguishes processes of the same name.
func (l *ledger) worker(process string, spec group.MemberSpec, n int) *member {
	c := &conn{RunStore: l.store, latency: 2 * time.Millisecond}
	return joinThrough(l.t, c, spec, l.shards(process, c, n))
}

func count(all []string, name string) (n int) {
	for _, s := range all {
		if s == name {
			n++
		}
	}
	return n
}
