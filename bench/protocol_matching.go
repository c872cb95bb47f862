package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// matching measures reactions that share entries of the feed: each entry matches one of the
// reactions, and each reaction is matched with all entries.
type matching struct {
	handle       runstore.RunStore
	tape         *tape.Tape
	claimTimeout time.Duration     // for the next task: a shard may wait for a lease to expire
	front        *protocolServer   // serves the workers, and runs no matcher
	start        runstore.Position // the end of the feed before the entries
	reactions    []*matchedReaction

	mu      sync.Mutex
	drained int
	latest  time.Time // time of the last claim
}

// matchedReaction is a reaction with the run whose decisions it matches.
type matchedReaction struct {
	id      string
	shard   runstore.RunID
	run     runstore.RunID
	lease   runstore.Lease // of run
	entries int
	last    runstore.Position // of the last entry, in the feed
	claims  []int             // claims of the task of each entry
	left    int               // entries whose task was not claimed yet
}

const (
	// entriesPerCommit is how many entries one commit writes: 10, so that a page of the feed has
	// some for each reaction.
	entriesPerCommit = 10
	// matchingWorkers is the number of workers. Each claims the tasks of some of the reactions.
	matchingWorkers = 4
	// drainPause is the pause of a worker that has claimed all available tasks: 200 ms, so that
	// claims take little from the matchers.
	drainPause = 200 * time.Millisecond
)

// measureMatching measures how fast servers match entries that were written before the servers
// started, while the servers are killed one after the other.
func (s *Session) measureMatching(ctx context.Context, store Store) (err error) {
	s.Step(3, protocolSteps, "reactions")
	handle, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	m := &matching{handle: handle, tape: tape.New(handle, nil), claimTimeout: feedTimeout + 2*s.Scale.MatcherTTL}
	defer func() { err = errors.Join(err, m.deregister()) }()
	if err := m.register(ctx, store.Prefix, s.Scale.Reactions); err != nil {
		return err
	}
	written, err := m.write(ctx, s.Scale.Growth, s.fillers(), s.Scale.Entries)
	if err != nil {
		return err
	}
	if written < s.Scale.Entries {
		s.Note(s.Target.System.Name, "of %d entries for reactions %d were written in %v", s.Scale.Entries, written, s.Scale.Growth)
	}
	if m.front, err = serveWith(handle, store.Prefix, tapeserver.Options{NoMatcher: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.front.stop()) }()

	r := Result{
		Group: "matching", System: s.Target.System.Name, Side: fmt.Sprintf("a server killed every %v", s.killEvery()),
		Params: map[string]string{"entries": strconv.Itoa(s.Scale.Entries), "reactions": strconv.Itoa(len(m.reactions)), "servers": strconv.Itoa(matchingServers)},
	}
	servers := &matchers{session: s, store: store}
	var measured Measured
	if err := m.measure(ctx, servers, written, &measured); err != nil {
		return fmt.Errorf("matching: %w", err)
	}
	r.add(append(measured.metrics, Size{written, "entries"}.metric()))
	r.Verified = fmt.Sprintf("%d entries, each handled once: as one task of its reaction, which was claimed once; %d servers were killed", written, servers.kills)
	s.Record(r)
	return nil
}

// register registers n reactions at the end of the feed, and creates the runs of their entries.
func (m *matching) register(ctx context.Context, prefix string, n int) error {
	for i := range n {
		run := runstore.RunID(fmt.Sprintf("%s-matched-%d", prefix, i))
		lease, err := holdRun(ctx, m.handle, run)
		if err != nil {
			return err
		}
		r, err := m.tape.RegisterReaction(ctx, tape.Reaction{
			ID: fmt.Sprintf("%s reaction %d", prefix, i), Pattern: "/tape/decision/recorded/" + string(run) + "/*", Handler: tape.HandlerTask,
		}, true)
		if err != nil {
			return err
		}
		m.reactions = append(m.reactions, &matchedReaction{id: r.ID, run: run, lease: lease})
		// With the shards open, the first commits of a server are those of matches.
		if m.reactions[i].shard, err = m.tape.OpenShard(ctx, r, 0); err != nil {
			return err
		}
	}
	return nil
}

// deregister deletes the reactions, which any server on the store would continue to match.
func (m *matching) deregister() (err error) {
	for _, r := range m.reactions {
		_, failed := m.tape.DeregisterReaction(context.Background(), r.id)
		err = errors.Join(err, failed)
	}
	return err
}

// write writes up to n entries, for each reaction in turn, and waits until the feed shows them.
func (m *matching) write(ctx context.Context, budget time.Duration, workers, n int) (written int, err error) {
	if m.start, err = feedEnd(ctx, m.handle); err != nil {
		return 0, err
	}
	commits := max(1, n/entriesPerCommit)
	made, err := fill(ctx, budget, workers, commits, func(ctx context.Context, i int) error {
		r := m.reactions[i%len(m.reactions)]
		b := runstore.NewBatch(r.run, r.lease.Fence())
		for k := range entriesPerCommit {
			b.Append("decision", fmt.Appendf(nil, `{"decision_index":%d,"model":"model"}`, i/len(m.reactions)*entriesPerCommit+k))
		}
		_, err := m.handle.Commit(ctx, b)
		return err
	})
	if err != nil {
		return 0, err
	}
	for i, r := range m.reactions {
		r.entries = (made + len(m.reactions) - 1 - i) / len(m.reactions) * entriesPerCommit
		r.claims, r.left = make([]int, r.entries), r.entries
		written += r.entries
	}
	return written, m.find(ctx)
}

// find reads the feed until it has shown the last entry of each reaction. The feed may lag behind
// the journals.
func (m *matching) find(ctx context.Context) error {
	missing := map[runstore.RunID]*matchedReaction{}
	for _, r := range m.reactions {
		if r.entries > 0 {
			missing[r.run] = r
		}
	}
	for after, news := m.start, time.Now(); len(missing) > 0; {
		page, err := m.handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			return err
		}
		for _, e := range page {
			after, news = e.Position, time.Now()
			if r := missing[e.Run]; r != nil && int(e.Seq) == r.entries {
				r.last = e.Position
				delete(missing, e.Run)
			}
		}
		if time.Since(news) > feedTimeout {
			return fmt.Errorf("the feed does not show the last entries of %d runs in %v", len(missing), feedTimeout)
		}
		if len(page) == 0 {
			if err := sleep(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure measures servers that match the entries and workers that claim the tasks.
func (m *matching) measure(ctx context.Context, servers *matchers, entries int, measured *Measured) error {
	var clients []tapepb.TapeClient
	for range matchingWorkers {
		client, err := m.front.dial()
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	matched, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	cpu, began := cpuTime(), time.Now()
	m.latest = began
	go func() {
		err := servers.run(matched)
		cancel(err) // err is nil only if ctx has ended already
		ended <- err
	}()
	var all sync.WaitGroup
	for w, client := range clients {
		all.Go(func() {
			if err := m.work(matched, client, w); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	failed := context.Cause(matched)
	took, spent := m.latest.Sub(began), cpuTime()-cpu
	cancel(nil)
	if err := errors.Join(failed, <-ended); err != nil {
		return err
	}
	for i := range m.reactions { // requests in flight at the kill of a server
		_, err := m.claim(ctx, clients[0], i)
		for began := time.Now(); refusedForNow(err) && time.Since(began) < m.claimTimeout; {
			_, err = m.claim(ctx, clients[0], i)
		}
		if err != nil {
			return err
		}
	}
	calls, feeds := servers.calls()
	measured.Add(Rate, "entries/s", More, float64(entries)/took.Seconds())
	measured.Add("servers killed", "", "", float64(servers.kills))
	measured.Add("store calls per entry", "", Less, float64(calls)/float64(entries))
	measured.Add("reads of the feed", "", Less, float64(feeds))
	measured.Add("CPU per entry", "µs", Less, float64(spent.Microseconds())/float64(entries))
	return nil
}

// work claims the tasks of a worker's share of the reactions, until every entry of theirs had a
// task claimed.
func (m *matching) work(ctx context.Context, client tapepb.TapeClient, worker int) error {
	var mine []int
	for i := worker; i < len(m.reactions); i += matchingWorkers {
		mine = append(mine, i)
	}
	for {
		for _, i := range mine {
			if err := m.drain(ctx, client, i); err != nil {
				return err
			}
		}
		mine = slices.DeleteFunc(mine, func(i int) bool { return m.reactions[i].left == 0 })
		if len(mine) == 0 {
			return nil
		}
		m.mu.Lock()
		drained, still := m.drained, time.Since(m.latest)
		m.mu.Unlock()
		if still > m.claimTimeout {
			return fmt.Errorf("after %d entries no further one was matched in %v", drained, m.claimTimeout)
		}
		if err := sleep(ctx, drainPause); err != nil {
			return err
		}
	}
}

// drain claims the available tasks of a reaction. It fails if the reaction has passed all of its
// entries and tasks are missing.
func (m *matching) drain(ctx context.Context, client tapepb.TapeClient, i int) error {
	r := m.reactions[i]
	for passed := false; ; {
		n, err := m.claim(ctx, client, i)
		if refusedForNow(err) {
			return nil // retried at the next turn, until no entry was matched for too long
		}
		if err != nil || r.left == 0 {
			return err
		}
		switch {
		case n > 0:
			if n < tape.MaxTaskClaim && !passed {
				return nil
			}
		case passed:
			return fmt.Errorf("entry %d of %d of reaction %q was passed over: it has no task", slices.Index(r.claims, 0), r.entries, r.id)
		default:
			c, err := m.tape.ShardCursor(ctx, r.shard)
			if err != nil {
				return err
			}
			if passed = c.Position >= r.last; !passed {
				return nil
			}
		}
	}
}

// claim claims some tasks of a reaction, counts them and returns their number.
func (m *matching) claim(ctx context.Context, client tapepb.TapeClient, i int) (int, error) {
	r := m.reactions[i]
	reply, err := client.ClaimTasks(ctx, &tapepb.ClaimTasksRequest{ReactionId: r.id, Shard: -1, Owner: "bench", LeaseMs: time.Hour.Milliseconds(), Max: tape.MaxTaskClaim})
	if err != nil {
		return 0, err
	}
	for _, task := range reply.GetTasks() {
		entry := struct {
			Index int `json:"decision_index"`
		}{-1}
		if err := json.Unmarshal([]byte(task.GetPayloadJson()), &entry); err != nil {
			return 0, err
		}
		if task.GetSourceRunId() != string(r.run) || task.GetReactionId() != r.id || entry.Index < 0 || entry.Index >= r.entries {
			return 0, fmt.Errorf("reaction %q has the task %v, which is for none of its entries", r.id, task)
		}
		if r.claims[entry.Index]++; r.claims[entry.Index] > 1 {
			return 0, fmt.Errorf("entry %d of reaction %q was handled more than once: it has a second task, or one that was claimed twice", entry.Index, r.id)
		}
		r.left--
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(reply.GetTasks()); n > 0 {
		m.drained += n
		m.latest = time.Now()
	}
	return len(reply.GetTasks()), nil
}
