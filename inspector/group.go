package inspector

import (
	"context"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
)

// groupView is a group, with a page of its shards.
type groupView struct {
	Now        time.Time    `json:"now"`
	Name       string       `json:"name"`
	Ref        string       `json:"ref"` // of the group's run
	Generation int64        `json:"generation"`
	Members    []memberView `json:"members"`
	Shards     []shardView  `json:"shards"`
	// Total is the number of shards.
	Total  int    `json:"total"`
	Cursor string `json:"cursor,omitempty"`
}

type memberView struct {
	Name       string    `json:"name"`
	Ref        string    `json:"ref"` // of the member's run
	Token      int64     `json:"token"`
	TokenText  string    `json:"token_text"`
	Joined     time.Time `json:"joined"`
	Assigned   int       `json:"assigned"`
	Attributes content   `json:"attributes"`
}

type shardView struct {
	Shard int       `json:"shard"`
	Ref   string    `json:"ref"`
	Owner string    `json:"owner"` // that the assignment names
	Lease leaseView `json:"lease"`
	Level string    `json:"level,omitempty"`
	Why   string    `json:"why,omitempty"`
}

// group returns the live members of a group and a page of its shards: the owner that the assignment
// names, and the lease that decides.
func (in *inspector) group(ctx context.Context, p params) (any, error) {
	g, err := group.New(in.store, p.Get("name"), &group.Options{Logger: in.opts.Logger})
	if err != nil {
		return nil, err
	}
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	at, err := p.cursor("group")
	if err != nil {
		return nil, err
	}
	first := 0
	if at != "" {
		if first, err = strconv.Atoi(at); err != nil || first < 0 || first > group.MaxShards {
			return nil, badRequest("cursor", "is not one that a page ended with")
		}
	}
	snapshot, err := g.Members(ctx)
	if err != nil {
		return nil, err
	}
	assignment, err := g.Assignment(ctx)
	if err != nil {
		return nil, err
	}
	v := groupView{
		Now: snapshot.At, Name: shown(p.Get("name")), Ref: toRef(string(g.Run())), Generation: int64(assignment.Generation),
		Members: []memberView{}, Shards: []shardView{}, Total: len(assignment.Owners),
	}
	assigned, live := map[string]int{}, map[string]bool{}
	for _, owner := range assignment.Owners {
		assigned[owner]++
	}
	for _, m := range snapshot.Members {
		live[m.Name] = true
		v.Members = append(v.Members, memberView{
			shown(m.Name), toRef(string(g.MemberRun(m.Name))), int64(m.Token), m.Token.String(), m.JoinedAt, assigned[m.Name], preview(string(m.Attributes)),
		})
	}
	first = min(first, v.Total)
	end := min(first+limit, v.Total)
	v.Shards = make([]shardView, end-first)
	if end < v.Total {
		v.Cursor = p.next("group", strconv.Itoa(end))
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(8)
	for i := range v.Shards {
		reads.Go(func() (err error) {
			shard := first + i
			v.Shards[i], err = in.shard(ctx, g.ShardRun(shard), v.Now, assignment.Owners[shard], live)
			v.Shards[i].Shard = shard
			return err
		})
	}
	return v, reads.Wait()
}

// shard reads the lease of a shard.
func (in *inspector) shard(ctx context.Context, id runstore.RunID, now time.Time, owner string, live map[string]bool) (shardView, error) {
	v := shardView{Ref: toRef(string(id)), Owner: shown(owner), Lease: leaseView{State: stateFree}}
	head, err := in.store.GetRun(ctx, id)
	if err != nil && !errors.Is(err, runstore.ErrNotFound) {
		return v, err
	}
	if err == nil {
		v.Lease = viewLease(head, now)
	}
	switch {
	case !live[owner]:
		v.Level, v.Why = levelWarn, "the assigned member is not live"
	case v.Lease.State != stateLive:
		v.Level, v.Why = levelWarn, "no live lease: the assigned member has not begun, or has stopped"
	case string(head.Holder.Owner) != owner:
		v.Level, v.Why = levelWarn, "another member still holds the lease"
	}
	return v, nil
}
