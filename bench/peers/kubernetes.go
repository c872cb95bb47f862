package peers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/tapestore/tapestore/bench"
)

const namespace = "bench"

// electionTimes holds the times of client-go's elector. Its usual RetryPeriod is 2 s, which would
// leave contenders idle; this one makes a contender try as often as the other polling peers.
type electionTimes struct{ lease, renew, retry time.Duration }

var (
	usualTimes = electionTimes{15 * time.Second, 10 * time.Second, 4 * time.Millisecond}
	briefTimes = electionTimes{briefTTL, 800 * time.Millisecond, 50 * time.Millisecond}
)

// apiServer is an in-memory API server: the object tracker of client-go's fakes, with the
// optimistic concurrency on leases that a real server has and the tracker lacks.
type apiServer struct {
	client  *fake.Clientset
	tracker clienttesting.ObjectTracker
	version int // of the last write of a lease; the client's lock guards it
}

func newAPIServer() *apiServer {
	s := &apiServer{
		client:  &fake.Clientset{},
		tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()),
	}
	s.client.AddReactor("create", "leases", s.writeLease)
	s.client.AddReactor("update", "leases", s.writeLease)
	s.client.AddReactor("*", "*", clienttesting.ObjectReaction(s.tracker))
	return s
}

// writeLease creates a lease, or updates it if its resource version is the stored one. The fake
// client runs one reaction at a time.
func (s *apiServer) writeLease(action clienttesting.Action) (bool, runtime.Object, error) {
	lease := action.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
	resource := action.GetResource()
	write := func() error { return s.tracker.Create(resource, lease, namespace) }
	if action.GetVerb() == "update" {
		stored, err := s.tracker.Get(resource, namespace, lease.Name)
		if err != nil {
			return true, nil, err
		}
		if have := stored.(*coordinationv1.Lease).ResourceVersion; have != lease.ResourceVersion {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), lease.Name, fmt.Errorf("version %s, not %s", have, lease.ResourceVersion))
		}
		write = func() error { return s.tracker.Update(resource, lease, namespace) }
	}
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	if err := write(); err != nil {
		return true, nil, err
	}
	return true, lease.DeepCopy(), nil
}

// leaderElection is a contest of client-go's electors. Each turn runs one, stores the event as a
// ConfigMap while it leads, and ends it, which releases the lease.
func leaderElection(_ context.Context, contenders, leases int) (bench.Contest, error) {
	server := newAPIServer()
	var written atomic.Int64
	c := &contest{leases: leases, ttl: briefTimes.lease}
	c.committed = func(ctx context.Context) (int, error) {
		all, err := server.client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		return len(all.Items), nil
	}
	c.acquire = func(ctx context.Context, contender, lease int, brief bool) (*holding, error) {
		times := usualTimes
		if brief {
			times = briefTimes
		}
		defer server.client.ClearActions() // the fake client records every request
		lock := newElectionLock(ctx, server.client, lease, contender)
		e, err := elect(ctx, lock, times)
		if err != nil {
			h := &holding{}
			h.attempts, h.lost = lock.attempted()
			return h, err
		}
		h := &holding{
			write: func(ctx context.Context) error {
				called(ctx)
				_, err := server.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("event-%d", written.Add(1))},
					BinaryData: map[string][]byte{"event": payload},
				}, metav1.CreateOptions{})
				return err
			},
			release: func(context.Context) error { e.end(); return nil },
			pause:   func(context.Context) error { lock.pause(); return nil },
			abandon: func() { lock.wake(); e.end() },
		}
		h.attempts, h.lost = lock.attempted()
		return h, nil
	}
	return c, nil
}

// election is a running elector.
type election struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// end ends the elector, which releases its lease.
func (e *election) end() {
	e.cancel()
	<-e.done
}

// elect starts an elector, and returns once it leads.
func elect(ctx context.Context, lock *electionLock, times electionTimes) (*election, error) {
	leads := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: lock.Describe(), ReleaseOnCancel: true,
		LeaseDuration: times.lease, RenewDeadline: times.renew, RetryPeriod: times.retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return nil, err
	}
	quiet := klog.NewContext(context.WithoutCancel(ctx), logr.Discard())
	run, cancel := context.WithCancel(quiet)
	e := &election{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		elector.Run(run)
	}()
	select {
	case <-leads:
		return e, nil
	case <-e.done:
		return nil, errors.New("the elector ended")
	case <-ctx.Done():
		e.end()
		return nil, ctx.Err()
	}
}

// electionLock is the lease of one elector. It counts requests and attempts, and can block them
// all, as if the elector's process did not run.
type electionLock struct {
	resourcelock.Interface
	turn context.Context // whose requests are counted; a release has no context of the turn

	mu       sync.Mutex
	woken    chan struct{} // non-nil while paused
	attempts int
	began    time.Time     // of the last attempt
	last     time.Duration // of the last attempt while it is refused
	lost     []time.Duration
}

func newElectionLock(ctx context.Context, client kubernetes.Interface, lease, contender int) *electionLock {
	return &electionLock{turn: ctx, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("lease-%d", lease), Namespace: namespace},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("contender-%d", contender)},
	}}
}

func (l *electionLock) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = make(chan struct{})
}

func (l *electionLock) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.woken != nil {
		close(l.woken)
		l.woken = nil
	}
}

// attempted returns the number of attempts, and the duration of each refused one.
func (l *electionLock) attempted() (int, []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts, l.lost
}

// request waits while the process is paused, and counts the request.
func (l *electionLock) request() {
	l.mu.Lock()
	woken := l.woken
	l.mu.Unlock()
	if woken != nil {
		<-woken
	}
	called(l.turn)
}

// Get begins an attempt.
func (l *electionLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.request()
	began := time.Now()
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attempts > 0 {
		l.lost = append(l.lost, l.last)
	}
	l.attempts++
	l.began, l.last = began, time.Since(began)
	return record, raw, err
}

func (l *electionLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.request()
	return l.wrote(l.Interface.Create(ctx, record))
}

func (l *electionLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.request()
	return l.wrote(l.Interface.Update(ctx, record))
}

// wrote extends the attempt to the end of its second request.
func (l *electionLock) wrote(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Since(l.began)
	return err
}
