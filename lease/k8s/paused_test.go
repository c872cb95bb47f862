package k8s_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/lease/k8s"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
)

func TestMain(m *testing.M) {
	childprocess.Main(m, func(args []string) error { return controller(args[0], args[1], args[2]) })
}

// steps is the number of writes of one task of the controller.
const steps = 40

// controller is a process with an elector. As the leader it works on one task of many writes, and
// does not look at its context in between: as if it were paused between the look and the write.
func controller(kind, identity, url string) error {
	ctx := childprocess.UntilStopped()
	store, err := runstore.Open(ctx, url)
	if err != nil {
		return err
	}
	lease, err := k8s.New(store, "controller", identity)
	if err != nil {
		return err
	}
	var lock resourcelock.Interface = lease
	if kind == "record" {
		lock = &recordLock{store: store, identity: identity}
	}
	worked := make(chan struct{})
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 500 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				fence, fenced := lease.Fence()
				stored, refused := 0, 0
				for step := range steps {
					b := runstore.NewBatch("controller", runstore.Unguarded("the lock is an ordinary record"))
					if fenced {
						b = runstore.NewBatch("controller", fence)
					}
					b.Append(identity, nil)
					if _, err := store.Commit(context.WithoutCancel(ctx), b); err != nil {
						refused++
					} else {
						stored++
					}
					if step == 0 {
						fmt.Println("working")
					}
					time.Sleep(25 * time.Millisecond)
				}
				fmt.Println("done", stored, refused)
				close(worked)
			},
			OnStoppedLeading: func() {},
		},
	})
	<-worked // the elector does not wait for the work, and both processes have led
	return nil
}

// recordLock is what a lock on a Lease object of Kubernetes is: a record that is replaced by
// compare-and-swap, and that no other write looks at.
type recordLock struct {
	store    runstore.RunStore
	identity string
	version  runstore.Version
}

const lockKey = "lock"

func (l *recordLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	records, err := l.store.ReadRecords(ctx, "controller", runstore.RecordQuery{Keys: []runstore.RecordKey{lockKey}})
	if err != nil {
		return nil, nil, err
	}
	if len(records) == 0 {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{}, lockKey)
	}
	l.version = records[0].Version
	record := &resourcelock.LeaderElectionRecord{}
	return record, records[0].Value, json.Unmarshal(records[0].Value, record)
}

func (l *recordLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.version = 0
	return l.Update(ctx, record)
}

func (l *recordLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	b := runstore.NewBatch("controller", runstore.AtVersion(lockKey, l.version))
	b.Put(lockKey, value)
	done, err := l.store.Commit(ctx, b)
	if err == nil {
		l.version = done.Versions[0]
	}
	return err
}

func (l *recordLock) RecordEvent(string) {}
func (l *recordLock) Identity() string   { return l.identity }
func (l *recordLock) Describe() string   { return "record" }

// The same election library and the same controller, stopped in the middle of a task for longer than
// its lease while another process takes over, and continued. With an ordinary record as the lock its
// late writes are stored. With the lease as the lock the store refuses them.
func TestPausedLeader(t *testing.T) {
	for _, kind := range []string{"record", "lease"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := "sqlite:" + filepath.Join(t.TempDir(), "store.db")
			store, err := runstore.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = store.Close() }()
			if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "controller"}); err != nil {
				t.Fatal(err)
			}
			first := childprocess.Start(t, nil, kind, "first", url)
			first.Next(t, "working")
			first.Suspend(t, store)
			second := childprocess.Start(t, nil, kind, "second", url)
			second.Next(t, "working")
			first.Resume(t)
			var stored, refused int
			if _, err := fmt.Sscanf(first.Next(t, "done"), "done %d %d", &stored, &refused); err != nil {
				t.Fatal(err)
			}
			second.Next(t, "done")

			late, takenOver := 0, false
			for e, err := range runstore.Journal(t.Context(), store, "controller", 1) {
				if err != nil {
					t.Fatal(err)
				}
				if takenOver = takenOver || e.Kind == "second"; takenOver && e.Kind == "first" {
					late++
				}
			}
			t.Logf("%s: %d late writes stored, %d of %d writes refused", kind, late, refused, steps)
			switch {
			case stored+refused != steps:
				t.Errorf("%d stored and %d refused, want %d together", stored, refused, steps)
			case kind == "record" && late == 0:
				t.Error("no late write was stored: the trial shows nothing")
			case kind == "lease" && (late != 0 || refused == 0):
				t.Errorf("%d late writes were stored and %d refused, want that all are refused", late, refused)
			}
		})
	}
}
