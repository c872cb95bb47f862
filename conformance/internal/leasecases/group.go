package leasecases

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
)

const (
	// shards is the number of shards that three members share.
	shards = 6
	// groupTTL is long, because a slow engine has to renew the leases of all shards in time:
	// Spanner's emulator, while other cases run.
	groupTTL = 15 * time.Second
)

func newGroup(s runstore.RunStore) (*group.Group, error) {
	return group.New(s, "workers", &group.Options{TTL: groupTTL, Logger: quiet})
}

func memberName(i int) string { return fmt.Sprint("member-", i) }

// member is a member of a group that writes to each of its shards all the time. After a loss of its
// membership, as on a busy machine, it joins again.
func member(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *kit.Report) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go awaitEnd(in, stop)
	g, err := newGroup(s)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := g.Join(ctx, group.MemberSpec{Name: memberName(round)}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, shards, func(ctx context.Context, held *lease.Held, _ int) error {
				for {
					b := runstore.NewBatch(held.Fence().Run(), held.Fence())
					b.Append("write", nil)
					if _, err := s.Commit(ctx, b); err != nil {
						return err
					}
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-time.After(2 * time.Second):
					}
				}
			})
		})
		if ctx.Err() != nil {
			return nil
		}
		kind := runstore.KindOf(err)
		if !errors.Is(err, lease.ErrLost) && kind != runstore.ErrUnavailable && kind != runstore.ErrUnknownOutcome {
			return err
		}
		_ = out.Line("lost %v", err)
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func groupOfWorkers(t harness.T, e *harness.Env) {
	openURL(t, e)
	g, err := newGroup(e.Store)
	if err != nil {
		t.Fatalf("%v", err)
	}
	all := newChildren(t, e)
	for range 3 {
		all.start("member")
	}
	owned := func(members ...int) (n int) {
		now := e.Now(t)
		for shard := range shards {
			head, err := e.Store.GetRun(t.Context(), g.ShardRun(shard))
			if errors.Is(err, runstore.ErrNotFound) {
				continue
			} else if err != nil {
				t.Fatalf("read the run of a shard: %v", err)
			}
			ours := slices.ContainsFunc(members, func(i int) bool { return memberName(i) == string(head.Holder.Owner) })
			if last, err := e.Store.ReadJournal(t.Context(), head.ID, max(head.LastSeq, 1), 1); err != nil {
				t.Fatalf("read the journal of a shard: %v", err)
			} else if ours && head.Live(now) && len(last) == 1 && last[0].Token == head.Token {
				n++
			}
		}
		return n
	}
	await := func(members ...int) {
		t.Helper()
		e.AwaitState(t, harness.CaseTimeout, func() bool { return owned(members...) == shards }, func() string {
			return fmt.Sprintf("%d of %d shards are owned; the members said %v", owned(members...), shards, all.said())
		})
	}
	await(0, 1, 2)
	all.kill(1)
	killed := time.Now()
	await(0, 2)
	t.Logf("%d shards owned again %v after a kill, with a TTL of %v", shards, time.Since(killed).Round(time.Millisecond), groupTTL)
	ends := func() (all []group.Ended) {
		for _, event := range kit.Journal(t, e.Store, g.MemberRun(memberName(1))) {
			var end group.Ended
			if event.Kind != group.EventEnded {
				continue
			}
			if err := json.Unmarshal(event.Data, &end); err != nil {
				t.Fatalf("the end of a membership: %v", err)
			}
			all = append(all, end)
		}
		return all
	}
	joined := func() (n int) {
		for _, event := range kit.Journal(t, e.Store, g.MemberRun(memberName(1))) {
			if event.Kind == group.EventJoined {
				n++
			}
		}
		return n
	}
	e.Await(t, harness.CaseTimeout, func() bool { return len(ends()) == joined() })
	if last := ends()[len(ends())-1]; last.Reason != group.Expired {
		t.Errorf("the membership of the killed process ended as %s, want %s", last.Reason, group.Expired)
	}
	all.end()
	for i := range shards {
		checkTerms(t, e, g.ShardRun(i), 1)
	}
}
