package inspector

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
)

// A request that waits is answered as soon as the run changes: by a commit, and by the passage of time.
// Without a change it is answered after its wait.
func TestWatchRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		held := b.create(runstore.RunSpec{ID: "r", Lease: &runstore.LeaseSpec{Owner: "o", TTL: 10 * time.Second}})
		first := read[runView](b, "run", "run", "r")
		if first.Run.Lease.State != stateLive || first.Last != nil {
			t.Fatalf("got %+v", first)
		}
		type answer struct {
			view runView
			took time.Duration
		}
		watch := func(tag string) chan answer {
			answers, began := make(chan answer, 1), time.Now()
			go func() {
				v := read[runView](b, "run", "run", "r", "seen", tag, "wait", "25")
				answers <- answer{v, time.Since(began)}
			}()
			synctest.Wait()
			return answers
		}
		if a := <-watch("another state"); a.took != 0 || a.view.Tag != first.Tag {
			t.Errorf("another state: after %v, tag %q", a.took, a.view.Tag)
		}
		answers := watch(first.Tag)
		time.Sleep(time.Second)
		batch := runstore.NewBatch("r", held.Fence())
		batch.Append("k", []byte(`{"status":"stuck"}`))
		b.commit(batch)
		a := <-answers
		if a.took != time.Second || a.view.Last == nil || a.view.Last.Status != "stuck" || a.view.Last.Level != levelBad {
			t.Errorf("a commit: after %v, %+v", a.took, a.view.Last)
		}
		a = <-watch(a.view.Tag) // 9 s later the lease expires
		if a.took < 9*time.Second || a.took > 9*time.Second+watchInterval || a.view.Run.Lease.State != stateExpired || len(a.view.Problems) != 1 {
			t.Errorf("the expiry: after %v, %+v", a.took, a.view)
		}
		expired := a.view.Tag
		if a = <-watch(expired); a.took != 25*time.Second || a.view.Tag != expired {
			t.Errorf("no change: after %v, tag %q, want %q", a.took, a.view.Tag, expired)
		}

		// A client that leaves ends its request.
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() {
			defer close(ended)
			b.handler.ServeHTTP(httptest.NewRecorder(), request("GET", "/api/run?run=r&wait=25&seen="+expired, nil).WithContext(ctx))
		}()
		synctest.Wait()
		leave()
		<-ended
	})
}

// Requests that wait take none of the slots of those that read, and are bounded themselves.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &Options{MaxWatches: 2})
		b.create(runstore.RunSpec{ID: "r"})
		tag := read[runView](b, "run", "run", "r").Tag
		ended := make(chan int, 3)
		for range 2 {
			go func() {
				status, _ := b.get("run", "run", "r", "seen", tag, "wait", "10")
				ended <- status
			}()
		}
		synctest.Wait()
		w := b.do(request("GET", "/api/run?run=r&wait=10&seen="+tag, nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"kind":"busy"`) {
			t.Errorf("the third wait: status %d: %s", w.Code, w.Body)
		}
		if status, _ := b.get("run", "run", "r"); status != 200 {
			t.Errorf("a read: status %d", status)
		}
		for range 2 {
			if status := <-ended; status != 200 {
				t.Errorf("a wait: status %d", status)
			}
		}
		if status, _ := b.get("run", "run", "r", "seen", tag, "wait", "1"); status != 200 {
			t.Errorf("a wait after them: status %d", status)
		}
	})
}

// The feed begins at its end, and a request that waits has the events that follow.
func TestFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.create(runstore.RunSpec{ID: "r"})
		add := func(n int) {
			batch := runstore.NewBatch("r", runstore.Unguarded("test"))
			for i := range n {
				batch.Append("k", fmt.Append(nil, i))
			}
			b.commit(batch)
		}
		if v := read[feedView](b, "feed"); len(v.Events) != 0 || v.After != 0 {
			t.Errorf("the empty feed: %+v", v)
		}
		add(30)
		v := read[feedView](b, "feed", "limit", "10")
		if len(v.Events) != 10 || v.Events[0].Seq != 21 || v.After != v.Events[9].Position {
			t.Fatalf("the end: %+v", v)
		}
		answers := make(chan feedView, 1)
		go func() { answers <- read[feedView](b, "feed", "after", fmt.Sprint(v.After), "wait", "20") }()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		add(2)
		began := time.Now()
		next := <-answers
		if len(next.Events) != 2 || next.Events[0].Seq != 31 || next.Events[0].Run != "r" || time.Since(began) > wakeGap {
			t.Errorf("after a wait: %+v, %v after the commit", next, time.Since(began))
		}
		if v := read[feedView](b, "feed", "after", fmt.Sprint(next.After), "wait", "2"); len(v.Events) != 0 || v.After != next.After {
			t.Errorf("nothing new: %+v", v)
		}
		if v := read[feedView](b, "feed", "after", "1000000"); !v.Restarted || len(v.Events) != 32 {
			t.Errorf("a position that the store has lost: %d events, restarted %v", len(v.Events), v.Restarted)
		}
	})
}

// A group has its live members, and for each shard the member that should hold it and the lease that
// decides.
func TestGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		g, err := group.New(b.store, "workers", &group.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		leave := map[string]context.CancelFunc{}
		ended := make(chan error, 2)
		for _, name := range []string{"ada", "bob"} {
			ctx, cancel := context.WithCancel(t.Context())
			leave[name] = cancel
			go func() {
				ended <- g.Join(ctx, group.MemberSpec{Name: name, Attributes: []byte(`{"zone":"` + name + `"}`)}, func(ctx context.Context, m *group.Membership) error {
					return m.Shards(ctx, 5, func(ctx context.Context, _ *lease.Held, _ int) error { <-ctx.Done(); return nil })
				})
			}()
		}
		time.Sleep(20 * time.Second)
		v := read[groupView](b, "group", "name", "workers", "limit", "3")
		if len(v.Members) != 2 || v.Members[0].Name != "ada" || v.Members[0].Assigned+v.Members[1].Assigned != 5 || !strings.Contains(v.Members[0].Attributes.Text, "ada") || v.Total != 5 || len(v.Shards) != 3 {
			t.Fatalf("got %+v", v)
		}
		shards := append(v.Shards, read[groupView](b, "group", "name", "workers", "limit", "3", "cursor", v.Cursor).Shards...)
		for i, s := range shards {
			if s.Shard != i || s.Level != "" || s.Lease.State != stateLive || s.Lease.Owner != s.Owner || s.Ref != fmt.Sprint("group/workers/shard/", i) {
				t.Errorf("shard %d: %+v", i, s)
			}
		}
		if len(shards) != 5 {
			t.Errorf("%d shards", len(shards))
		}
		if _, err := lease.Break(t.Context(), b.store, lease.BreakRequest{Run: g.ShardRun(0), Whoever: true, Operator: "ada", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		if s := read[groupView](b, "group", "name", "workers").Shards[0]; s.Level != levelWarn || s.Lease.State != stateFree || !strings.HasPrefix(s.Why, "no live lease") {
			t.Errorf("a shard without a lease: %+v", s)
		}
		for _, cancel := range leave {
			cancel()
		}
		<-ended
		<-ended
		if v := read[groupView](b, "group", "name", "workers"); len(v.Members) != 0 || len(v.Shards) != 5 || v.Shards[0].Why != "the assigned member is not live" {
			t.Errorf("after its end: %+v", v)
		}
	})
}
