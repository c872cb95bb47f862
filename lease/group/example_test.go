package group_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A worker that shares 4 shards with the other members of its group; here it is the only one. A worker
// that lost its membership joins again.
func ExampleGroup_Join() {
	store := memory.New(nil).Open()
	g, err := group.New(store, "workers", &group.Options{Hysteresis: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	written := 0
	drive := func(ctx context.Context, held *lease.Held, shard int) error {
		b := runstore.NewBatch(held.Fence().Run(), held.Fence()) // every write presents the fence
		b.Append("processed", nil)
		if _, err := store.Commit(ctx, b); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if written++; written == 4 {
			stop()
		}
		return nil
	}
	for {
		err := g.Join(ctx, group.MemberSpec{Name: "eu-1", Attributes: []byte("10.0.0.1:80")},
			func(ctx context.Context, m *group.Membership) error {
				return m.Shards(ctx, 4, func(ctx context.Context, held *lease.Held, shard int) error {
					if err := drive(ctx, held, shard); err != nil {
						return err
					}
					<-ctx.Done()
					return context.Cause(ctx)
				})
			})
		if !errors.Is(err, lease.ErrLost) {
			fmt.Println("left:", errors.Is(err, context.Canceled))
			break
		}
	}
	for e, err := range runstore.Journal(context.Background(), store, g.MemberRun("eu-1"), 1) {
		fmt.Println(e.Kind, string(e.Data), err)
	}
	// Output:
	// left: true
	// group.joined {"group":"workers","member":"eu-1"} <nil>
	// group.ended {"group":"workers","member":"eu-1","reason":"released","token":1} <nil>
}

// An observer that follows the members of a group.
func ExampleGroup_Watch() {
	g, err := group.New(memory.New(nil).Open(), "workers", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		_ = g.Join(context.Background(), group.MemberSpec{Name: "eu-1", Attributes: []byte("10.0.0.1:80")},
			func(ctx context.Context, m *group.Membership) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
	}()
	for s, err := range g.Watch(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, m := range s.Members {
			fmt.Println(m.Name, string(m.Attributes))
		}
		if len(s.Members) > 0 {
			break
		}
	}
	// Output:
	// eu-1 10.0.0.1:80
}
