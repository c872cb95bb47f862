package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/tapestore/tapestore/bench"
)

// Parameters of River's elector (internal/leadership). Its type is internal, so the contests send
// the same requests through River's driver in the same order.
const (
	riverElectInterval = 5 * time.Second // between attempts without a notification, plus up to 1 s
	riverTTL           = riverElectInterval + 10*time.Second
	riverAfterResign   = 50 * time.Millisecond // bound of the random delay after a notification
	riverLeadership    = "river_leadership"
	riverInsert        = "river_insert"
	riverFetchPoll     = time.Second // FetchPollInterval of a client: the wait without a notification
)

// riverDriver is River's pgx driver on a database, with the schemas that contests need. Each schema
// of River has one leader.
type riverDriver struct {
	db     *database
	driver *riverpgxv5.Driver

	mu      sync.Mutex
	schemas map[string]bool // the migrated schemas
}

func newRiver(db *database) *riverDriver {
	return &riverDriver{db: db, driver: riverpgxv5.New(db.pool), schemas: map[string]bool{}}
}

// schema creates River's tables in a schema, once.
func (r *riverDriver) schema(ctx context.Context, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.schemas[name] {
		return nil
	}
	if _, err := r.db.pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	// The driver determines the server's capabilities before a turn counts its requests.
	if err := r.driver.GetExecutor().InitDriver(ctx); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(r.driver, &rivermigrate.Config{Schema: name})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	r.schemas[name] = true
	return nil
}

// listener forwards the notifications of one topic to the contenders of a process, as the single
// listening connection of a River client does.
type listener struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	next chan struct{} // closed at the next notification
	err  error         // why no more notifications arrive
}

// listen starts a listener for one topic in a schema of River.
func (r *riverDriver) listen(ctx context.Context, schema, topic string) (*listener, error) {
	conn := r.driver.GetListener(&riverdriver.GetListenenerParams{Schema: schema})
	if err := conn.Connect(ctx); err != nil {
		return nil, err
	}
	if err := conn.Listen(ctx, topic); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &listener{cancel: cancel, done: make(chan struct{}), next: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer conn.Close(context.Background())
		for {
			_, err := conn.WaitForNotification(ctx)
			l.mu.Lock()
			close(l.next)
			l.next, l.err = make(chan struct{}), err
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l, nil
}

// notified returns a channel that is closed at the next notification.
func (l *listener) notified() (<-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next, l.err
}

func (l *listener) close() {
	l.cancel()
	<-l.done
}

// wait returns at a notification, after the given time, or with the error of ctx.
func wait(ctx context.Context, notified <-chan struct{}, most time.Duration) (bool, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-notified:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// leader is a contest for River's leadership, in a schema for each lease.
func (r *riverDriver) leader(ctx context.Context, contenders, leases int) (bench.Contest, error) {
	e := r.db.newEvents()
	listeners := make([]*listener, 0, leases+1)
	closeAll := func() error {
		for _, l := range listeners {
			l.close()
		}
		return nil
	}
	schema := func(lease int) string { return fmt.Sprintf("river_leader_%d", lease) }
	for lease := range leases + 1 {
		if err := r.schema(ctx, schema(lease)); err != nil {
			return nil, errors.Join(err, closeAll())
		}
		l, err := r.listen(ctx, schema(lease), riverLeadership)
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		listeners = append(listeners, l)
	}
	c := &contest{leases: leases, ttl: briefTTL, committed: e.count, close: closeAll}
	c.acquire = func(ctx context.Context, contender, lease int, brief bool) (*holding, error) {
		ttl, every := riverTTL, riverElectInterval
		if brief {
			ttl, every = briefTTL, briefTTL/10
		}
		id := rand.Text() // River's default is an id of the client; a new one serves a new attempt
		h := &holding{}
		for {
			notified, err := listeners[lease].notified()
			if err != nil {
				return h, err
			}
			h.attempts++
			began := time.Now()
			term, err := r.elect(context.WithoutCancel(ctx), schema(lease), id, ttl)
			if err != nil {
				return h, err
			}
			if term != nil {
				h.write = func(ctx context.Context) error { return e.insert(ctx, r.db.pool, lease) }
				h.release = func(ctx context.Context) error {
					resigned, err := r.driver.GetExecutor().LeaderResign(ctx, &riverdriver.LeaderResignParams{
						ElectedAt: term.ElectedAt, LeaderID: id, LeadershipTopic: riverLeadership, Schema: schema(lease),
					})
					if err == nil && !resigned {
						err = errors.New("the leadership was lost")
					}
					return err
				}
				h.pause = func(context.Context) error { return nil } // a turn does not reelect
				return h, nil
			}
			h.lost = append(h.lost, time.Since(began))
			resigned, err := wait(ctx, notified, every)
			if err == nil && resigned {
				err = sleep(ctx, riverAfterResign)
			}
			if err != nil {
				return h, err
			}
		}
	}
	return c, nil
}

// elect attempts one election, as attemptElect of River's elector does. It returns nil if another
// leader exists.
func (r *riverDriver) elect(ctx context.Context, schema, id string, ttl time.Duration) (*riverdriver.Leader, error) {
	tx, err := r.driver.GetExecutor().Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.LeaderDeleteExpired(ctx, &riverdriver.LeaderDeleteExpiredParams{Schema: schema}); err != nil {
		return nil, err
	}
	term, err := tx.LeaderAttemptElect(ctx, &riverdriver.LeaderElectParams{LeaderID: id, Schema: schema, TTL: ttl})
	if err != nil && !errors.Is(err, rivertype.ErrNotFound) {
		return nil, err
	}
	return term, tx.Commit(ctx)
}

const riverJobs = "river_jobs"

// jobs is a contest for jobs of River: a lease is a queue with one job. A turn claims the job and,
// in one transaction, stores the event, completes the job as JobCompleteTx does, and inserts the
// next job with its notification as InsertTx does.
func (r *riverDriver) jobs(ctx context.Context, contenders, leases int) (bench.Contest, error) {
	if err := r.schema(ctx, riverJobs); err != nil {
		return nil, err
	}
	e := r.db.newEvents()
	queue := func(lease int) string { return fmt.Sprintf("contest_%d_%d", e.id, lease) }
	for lease := range leases + 1 {
		if err := r.inTx(ctx, func(tx riverdriver.ExecutorTx, _ pgx.Tx) error { return insertJob(ctx, tx, queue(lease)) }); err != nil {
			return nil, err
		}
	}
	l, err := r.listen(ctx, riverJobs, riverInsert)
	if err != nil {
		return nil, err
	}
	c := &contest{leases: leases, committed: e.count, close: func() error { l.close(); return nil }}
	c.acquire = func(ctx context.Context, contender, lease int, _ bool) (*holding, error) {
		h := &holding{}
		for {
			notified, err := l.notified()
			if err != nil {
				return h, err
			}
			h.attempts++
			began := time.Now()
			claimed, err := r.driver.GetExecutor().JobGetAvailable(context.WithoutCancel(ctx), &riverdriver.JobGetAvailableParams{
				ClientID: fmt.Sprintf("contender-%d", contender), MaxAttemptedBy: 100, MaxToLock: 1, Queue: queue(lease), Schema: riverJobs,
			})
			if err != nil {
				return h, err
			}
			if len(claimed.Jobs) == 1 {
				job := claimed.Jobs[0]
				h.write = func(ctx context.Context) error {
					return r.inTx(ctx, func(exec riverdriver.ExecutorTx, tx pgx.Tx) error {
						if err := e.insert(ctx, tx, lease); err != nil {
							return err
						}
						if err := completeJob(ctx, exec, job); err != nil {
							return err
						}
						return insertJob(ctx, exec, queue(lease))
					})
				}
				h.release = func(context.Context) error { return nil } // the write completes the job
				h.pause = func(ctx context.Context) error { return r.rescue(ctx, job) }
				return h, nil
			}
			h.lost = append(h.lost, time.Since(began))
			if _, err := wait(ctx, notified, riverFetchPoll); err != nil {
				return h, err
			}
		}
	}
	return c, nil
}

// inTx runs do in a transaction in which River's driver and the event share one connection.
func (r *riverDriver) inTx(ctx context.Context, do func(riverdriver.ExecutorTx, pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, r.db.pool, func(tx pgx.Tx) error { return do(r.driver.UnwrapExecutor(tx), tx) })
}

// completeJob sends the request of river.JobCompleteTx, which itself needs a running client.
func completeJob(ctx context.Context, tx riverdriver.ExecutorTx, job *rivertype.JobRow) error {
	p := riverdriver.JobSetStateCompleted(job.ID, time.Now(), nil)
	rows, err := tx.JobSetStateIfRunningMany(ctx, &riverdriver.JobSetStateIfRunningManyParams{
		ID: []int64{p.ID}, Attempt: []*int{p.Attempt}, ErrData: [][]byte{p.ErrData}, FinalizedAt: []*time.Time{p.FinalizedAt},
		MetadataDoMerge: []bool{p.MetadataDoMerge}, MetadataUpdates: [][]byte{p.MetadataUpdates},
		ScheduledAt: []*time.Time{p.ScheduledAt}, Schema: riverJobs, State: []rivertype.JobState{p.State},
	})
	if err == nil && len(rows) == 0 {
		err = rivertype.ErrNotFound
	}
	return err
}

func insertJob(ctx context.Context, tx riverdriver.ExecutorTx, queue string) error {
	_, err := tx.JobInsertFastMany(ctx, &riverdriver.JobInsertFastManyParams{Schema: riverJobs, Jobs: []*riverdriver.JobInsertFastParams{{
		EncodedArgs: []byte("{}"), Kind: "turn", MaxAttempts: river.MaxAttemptsDefault, Priority: river.PriorityDefault,
		Queue: queue, State: rivertype.JobStateAvailable,
	}}})
	if err != nil {
		return err
	}
	return tx.NotifyMany(ctx, &riverdriver.NotifyManyParams{
		Payload: []string{fmt.Sprintf("{\"queue\": %q}", queue)}, Topic: riverInsert, Schema: riverJobs,
	})
}

// rescue returns a running job to its queue, by the requests of River's rescuer and scheduler. A
// client does so an hour after the claim, unless configured otherwise.
func (r *riverDriver) rescue(ctx context.Context, job *rivertype.JobRow) error {
	var now time.Time // the server's time, which also set the time of the claim
	if err := r.db.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return err
	}
	exec := r.driver.GetExecutor()
	_, err := exec.JobRescueMany(ctx, &riverdriver.JobRescueManyParams{
		ID: []int64{job.ID}, Error: [][]byte{[]byte(`{"error": "stuck"}`)}, FinalizedAt: []*time.Time{nil},
		ScheduledAt: []time.Time{now}, State: []string{string(rivertype.JobStateRetryable)}, StuckHorizon: now, Schema: riverJobs,
	})
	if err != nil {
		return err
	}
	scheduled, err := exec.JobSchedule(ctx, &riverdriver.JobScheduleParams{Max: 100, Now: &now, Schema: riverJobs})
	if err == nil && len(scheduled) != 1 {
		err = fmt.Errorf("%d jobs were rescued, not 1", len(scheduled))
	}
	return err
}
