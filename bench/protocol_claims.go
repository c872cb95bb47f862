package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// claiming has workers claim the tasks of one reaction, one task per request. In a measured round
// they only claim; after it they complete what they have claimed, so that only the tasks of one
// round are open at a time, because a store may limit the records of a run that are in queues.
type claiming struct {
	store    runstore.RunStore
	tape     *tape.Tape
	servers  []*protocolServer
	ending   int                 // number of concurrent calls that complete tasks
	clients  []tapepb.TapeClient // one per worker
	reaction tape.Reaction
	fence    runstore.Fence // of the reaction's shard
	cursor   tape.Cursor
	tasks    int // before each round

	mu     sync.Mutex
	made   int
	claims map[int64]int // by the position of the task's entry
	open   [][]string    // ids of the tasks that each worker has claimed and not yet completed
	done   int           // completed tasks
	// refused counts the requests that a server refused temporarily.
	refused int
}

// measureClaims compares the numbers of workers, over one server and over two.
func (s *Session) measureClaims(ctx context.Context, store Store) (err error) {
	s.Step(4, protocolSteps, "claims")
	handle, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	var servers []*protocolServer
	for range 2 {
		other, err := store.Open(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, other.Close()) }()
		server, err := serveWith(other, store.Prefix, tapeserver.Options{NoMatcher: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.stop()) }()
		servers = append(servers, server)
	}
	var sides []Side
	for n := range servers {
		for _, workers := range s.Scale.Workers {
			c := &claiming{store: handle, tape: tape.New(handle, nil), servers: servers[:n+1], ending: s.fillers(), tasks: s.Scale.Tasks, claims: map[int64]int{}}
			if err := c.start(ctx, fmt.Sprintf("%s claims %d of %d", store.Prefix, workers, n+1), workers); err != nil {
				return err
			}
			side := "1 server"
			if n > 0 {
				side = fmt.Sprint(n+1, " servers")
			}
			sides = append(sides, Side{
				Group: "claims", System: s.Target.System.Name, Side: side, Params: map[string]string{"workers": strconv.Itoa(workers)},
				Round: c.round, Verify: c.verify,
			})
		}
	}
	return s.Compare(ctx, sides...)
}

// start creates the reaction's shard, under a lease, and the workers' clients. The reaction is not
// registered, so no matcher works on it.
func (c *claiming) start(ctx context.Context, id string, workers int) error {
	c.reaction = tape.Reaction{ID: id, Handler: tape.HandlerTask}
	shard, err := c.tape.OpenShard(ctx, c.reaction, 0)
	if err != nil {
		return err
	}
	granted, err := c.store.AcquireLease(ctx, runstore.AcquireRequest{Run: shard, LeaseSpec: runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
	if err != nil {
		return err
	}
	c.fence = granted.Fence()
	if c.cursor, err = c.tape.ShardCursor(ctx, shard); err != nil {
		return err
	}
	for i := range workers {
		client, err := c.servers[i%len(c.servers)].dial()
		if err != nil {
			return err
		}
		c.clients = append(c.clients, client)
	}
	c.open = make([][]string, workers)
	return nil
}

// fill creates tasks as a matcher does, until c.tasks are open.
func (c *claiming) fill(ctx context.Context) (err error) {
	var matches []tape.Entry
	to := c.cursor.Position
	for range c.tasks - (c.made - len(c.claims)) {
		to++
		matches = append(matches, tape.Entry{Run: "bench", Position: to, Subject: "/tape/decision/recorded/bench/1", Payload: rpcBody})
	}
	c.made += len(matches)
	for c.cursor.Position < to {
		if c.cursor, err = c.tape.Advance(ctx, c.fence, c.reaction, c.cursor, matches, to); err != nil {
			return err
		}
	}
	return nil
}

var errNoTasks = errors.New("all tasks are claimed")

// round opens tasks, measures the workers' claims for d, and then completes the claimed tasks.
func (c *claiming) round(ctx context.Context, d time.Duration, m *Measured) error {
	if err := c.fill(ctx); err != nil {
		return err
	}
	commits, calls := c.calls()
	before, refused := len(c.claims), c.refused
	load, err := Drive(ctx, len(c.clients), d, c.claim)
	if err != nil && !errors.Is(err, errNoTasks) {
		return err
	}
	claims := float64(len(c.claims) - before)
	if claims == 0 {
		return errors.New("no claim in time")
	}
	allCommits, allCalls := c.calls()
	m.Add(Rate, "claims/s", More, claims/load.Took.Seconds())
	m.Quantiles("claim", load.Latencies)
	m.Add("attempts per claim", "", Less, float64(allCommits-commits)/claims)
	m.Add("empty replies per claim", "", Less, max(0, float64(load.Done)-claims)/claims)
	m.Add("refused requests per claim", "", Less, float64(c.refused-refused)/claims)
	m.Add("store calls per claim", "", Less, float64(allCalls-calls)/claims)
	return c.complete(ctx)
}

// complete has the workers complete the tasks that they have claimed.
func (c *claiming) complete(ctx context.Context) error {
	type claim struct {
		worker int
		id     string
	}
	var all []claim
	for worker, ids := range c.open {
		for _, id := range ids {
			all = append(all, claim{worker, id})
		}
		c.open[worker] = nil
	}
	c.done += len(all)
	_, err := fill(ctx, runstore.MaxTTL, c.ending, len(all), func(ctx context.Context, i int) error {
		k := all[i]
		reply, err := c.clients[k.worker].CompleteTask(ctx, &tapepb.CompleteTaskRequest{TaskId: k.id, Owner: ownerOf(k.worker)})
		if err == nil && reply.GetTask().GetStatus() != tapepb.TaskStatus_TASK_STATUS_DONE {
			err = fmt.Errorf("CompleteTask answered %v", reply)
		}
		if err != nil {
			return fmt.Errorf("task %s, which worker %d has claimed, cannot be completed: %w", k.id, k.worker, err)
		}
		return nil
	})
	return err
}

func ownerOf(worker int) string { return fmt.Sprint("worker ", worker) }

// calls returns how many commits, and how many calls of any kind, RPCs have requested of the
// servers' stores.
func (c *claiming) calls() (commits, all int64) {
	for _, server := range c.servers {
		commits += server.calls.commits.Load()
		all += server.calls.ofRPCs.Load()
	}
	return commits, all
}

// claim claims one task as a worker. A worker that has to stop first waits for the reply to its
// last request.
func (c *claiming) claim(ctx context.Context, worker int) error {
	claimed, err := c.claimSome(context.WithoutCancel(ctx), worker, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && !claimed && len(c.claims) == c.made {
		err = errNoTasks
	}
	return err
}

// claimTasks requests tasks, and retries where the server has no room for the call or could not
// reach the store: nothing was claimed then. It returns how often it was refused.
func claimTasks(ctx context.Context, client tapepb.TapeClient, req *tapepb.ClaimTasksRequest) (tasks []*tapepb.Task, refused int, err error) {
	for began := time.Now(); ; refused++ {
		reply, err := client.ClaimTasks(ctx, req)
		if !refusedForNow(err) || time.Since(began) > feedTimeout {
			return reply.GetTasks(), refused, err
		}
		if err := sleep(ctx, claimPause); err != nil {
			return nil, refused, err
		}
	}
}

func refusedForNow(err error) bool {
	code := status.Code(err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
}

// claimPause is the pause of a worker whose request was refused: 10 ms, the time of a few claims.
const claimPause = 10 * time.Millisecond

// claimSome makes one request for up to limit tasks, and reports whether it claimed any.
func (c *claiming) claimSome(ctx context.Context, worker int, limit int32) (bool, error) {
	tasks, refused, err := claimTasks(ctx, c.clients[worker], &tapepb.ClaimTasksRequest{
		ReactionId: c.reaction.ID, Shard: -1, Owner: ownerOf(worker), LeaseMs: time.Hour.Milliseconds(), Max: limit,
	})
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused += refused
	for _, task := range tasks {
		at := task.GetSourceGlobalSeq()
		if c.claims[at]++; c.claims[at] > 1 {
			return false, fmt.Errorf("task %d was claimed twice, the second time by worker %d", at, worker)
		}
		c.open[worker] = append(c.open[worker], task.GetTaskId())
	}
	return len(tasks) > 0, nil
}

// verify claims the remaining tasks, which stay open. By then each task must have been claimed
// once, and the completed ones must be stored as completed.
func (c *claiming) verify(ctx context.Context) (string, error) {
	for {
		claimed, err := c.claimSome(ctx, 0, tape.MaxTaskClaim)
		if err != nil {
			return "", err
		}
		if !claimed {
			break
		}
	}
	if len(c.claims) != c.made {
		return "", fmt.Errorf("%d tasks were made, and %d can be claimed", c.made, len(c.claims))
	}
	done := 0
	for q := (runstore.RecordQuery{Prefix: doneTasks, Limit: runstore.MaxPage}); ; {
		page, err := c.store.ReadRecords(ctx, c.fence.Run(), q)
		if err != nil {
			return "", err
		}
		if len(page) == 0 {
			break
		}
		done += len(page)
		q.After = page[len(page)-1].Key
	}
	if done != c.done {
		return "", fmt.Errorf("%d tasks were completed, and %d are stored as done", c.done, done)
	}
	return fmt.Sprintf("%d tasks, each claimed once, of which %d were completed", c.made, done), nil
}

// doneTasks is the key prefix of completed tasks in the run of their shard, as package tape stores
// them.
const doneTasks = "done/"
