package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// faultyStore breaks a rule that a part must check.
type faultyStore struct {
	*memory.Handle
	commits, renewals atomic.Int64

	// acquire and commit replace the store's reply; nil keeps it.
	acquire func(runstore.AcquireRequest, runstore.Granted, error) (runstore.Granted, error)
	commit  func(n int64, b runstore.Batch) (runstore.Committed, error)
	renew   func(n int64, req runstore.RenewRequest) (runstore.Renewed, error)
	release func(req runstore.ReleaseRequest) (runstore.Committed, error)
}

func (f *faultyStore) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	if f.release != nil {
		return f.release(req)
	}
	return f.Handle.ReleaseLease(ctx, req)
}

func (f *faultyStore) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := f.Handle.AcquireLease(ctx, req)
	if f.acquire != nil {
		return f.acquire(req, granted, err)
	}
	return granted, err
}

func (f *faultyStore) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if f.commit != nil {
		return f.commit(f.commits.Add(1), b)
	}
	return f.Handle.Commit(ctx, b)
}

func (f *faultyStore) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	if f.renew != nil {
		return f.renew(f.renewals.Add(1), req)
	}
	return f.Handle.RenewLease(ctx, req)
}

// measure runs one part on a store that change has broken, with the strategies of peers.
func measure(t *testing.T, part string, change func(*faultyStore), peers ...Strategy) Report {
	t.Helper()
	return measureAt(t, Smoke(), part, change, peers...)
}

func measureAt(t *testing.T, scale Scale, part string, change func(*faultyStore), peers ...Strategy) Report {
	t.Helper()
	engine := memory.New(nil)
	start := func(context.Context) (Target, error) {
		return Target{System: System{Name: "memory"}, Strategies: peers, NewStore: func(context.Context) (Store, error) {
			return Store{Prefix: "test", Open: func(context.Context) (runstore.RunStore, error) {
				f := &faultyStore{Handle: engine.Open()}
				if change != nil {
					change(f)
				}
				return f, nil
			}}, nil
		}}, nil
	}
	report, err := Run(t.Context(), []Starter{{Name: "memory", Start: start}}, Options{Parts: []string{part}, Scale: scale})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func wantFault(t *testing.T, report Report, text string) {
	t.Helper()
	for _, f := range report.Faults {
		if strings.Contains(f.Text, text) {
			return
		}
	}
	t.Errorf("no fault says %q; there are %q", text, report.Faults)
}

func TestBrokenStoresFailTheContention(t *testing.T) {
	for name, test := range map[string]struct {
		part   string
		change func(*faultyStore)
		fault  string
	}{
		"an acknowledged event is lost": {"cas", func(f *faultyStore) {
			f.commit = func(n int64, b runstore.Batch) (runstore.Committed, error) {
				if n == 1 {
					return runstore.Committed{}, nil
				}
				return f.Handle.Commit(context.Background(), b)
			}
		}, "was acknowledged and is not stored"},
		"an event is stored twice": {"cas", func(f *faultyStore) {
			f.commit = func(_ int64, b runstore.Batch) (runstore.Committed, error) {
				if _, err := f.Handle.Commit(context.Background(), b); err != nil {
					return runstore.Committed{}, err
				}
				return f.Handle.Commit(context.Background(), b)
			}
		}, "carries token"},
		"one token is granted twice": {"cas", func(f *faultyStore) {
			f.acquire = func(req runstore.AcquireRequest, granted runstore.Granted, err error) (runstore.Granted, error) {
				if err == nil {
					_, err = f.Handle.ReleaseLease(context.Background(), runstore.ReleaseRequest{Fence: granted.Fence()})
					granted.Token = 1
				}
				return granted, err
			}
			f.commit = func(int64, runstore.Batch) (runstore.Committed, error) { return runstore.Committed{}, nil }
			f.release = func(runstore.ReleaseRequest) (runstore.Committed, error) { return runstore.Committed{}, nil }
		}, "was granted twice"},
		"a commit fails": {"cas", func(f *faultyStore) {
			f.commit = func(int64, runstore.Batch) (runstore.Committed, error) {
				return runstore.Committed{}, runstore.ErrUnavailable
			}
		}, "unavailable"},
		"a late write is stored": {"pause", func(f *faultyStore) {
			f.commit = func(_ int64, b runstore.Batch) (runstore.Committed, error) {
				c, err := f.Handle.Commit(context.Background(), b)
				if errors.Is(err, runstore.ErrFenced) {
					open := runstore.NewBatch(b.Run(), runstore.Unguarded("test"))
					open.Writes = b.Writes
					return f.Handle.Commit(context.Background(), open)
				}
				return c, err
			}
		}, "wrote under it after the takeover"},
		"a late write is stored though it is refused": {"pause", func(f *faultyStore) {
			f.commit = func(_ int64, b runstore.Batch) (runstore.Committed, error) {
				c, err := f.Handle.Commit(context.Background(), b)
				if errors.Is(err, runstore.ErrFenced) {
					open := runstore.NewBatch(b.Run(), runstore.Unguarded("test"))
					open.Writes = b.Writes
					_, _ = f.Handle.Commit(context.Background(), open)
				}
				return c, err
			}
		}, "wrote under it after the takeover"},
		"a write of the handover is lost": {"handover", func(f *faultyStore) {
			f.commit = func(n int64, b runstore.Batch) (runstore.Committed, error) {
				if n == 1 {
					return runstore.Committed{}, nil
				}
				return f.Handle.Commit(context.Background(), b)
			}
		}, "writes to another run were acknowledged"},
		"a renewal is not stored": {"heartbeat", func(f *faultyStore) {
			f.renew = func(n int64, req runstore.RenewRequest) (runstore.Renewed, error) {
				return runstore.Renewed{Lease: runstore.Lease{
					Run: req.Fence.Run(), Token: req.Fence.Token(), Grant: req.Fence.Grant(), TTL: req.TTL, ExpiresAt: time.Now().Add(time.Hour),
				}}, nil
			}
		}, "is leased under token"},
		"a lease is lost": {"heartbeat", func(f *faultyStore) {
			f.renew = func(n int64, req runstore.RenewRequest) (runstore.Renewed, error) {
				if n == 1 {
					return runstore.Renewed{}, runstore.ErrFenced
				}
				return f.Handle.RenewLease(context.Background(), req)
			}
		}, "lease lost"},
	} {
		t.Run(name, func(t *testing.T) {
			wantFault(t, measure(t, test.part, test.change), test.fault)
		})
	}
}

func TestSoundStoreHasEverySide(t *testing.T) {
	for part, results := range map[string]int{
		"cas":       3 * 6, // 1 and 4 contenders on one lease, 4 on two; with the client alone
		"pause":     1,
		"handover":  4 + 2,
		"heartbeat": 1,
	} {
		t.Run(part, func(t *testing.T) {
			report := measure(t, part, nil)
			if len(report.Faults) > 0 {
				t.Errorf("faults of a sound store: %q", report.Faults)
			}
			if n := len(report.Results); n != results {
				t.Errorf("%d results, want %d", n, results)
			}
			for _, r := range report.Results {
				if len(r.Metrics) == 0 || r.Group != "idle" && r.Verified == "" {
					t.Errorf("a result without metrics or verification: %+v", r)
				}
			}
		})
	}
}

// peer is a contest that stores what a broken lease would, and loses a share of it. Its first contender wins
// every turn, once another one waits.
type peer struct {
	turns    atomic.Int64
	stored   bool
	loses    int64
	another  sync.Once
	starving chan struct{} // closed when another contender waits; nil if there is none
}

func (p *peer) strategy() Strategy {
	return Strategy{System: "peer", Name: "mutex", New: func(_ context.Context, contenders, _ int) (Contest, error) {
		made := &peer{stored: p.stored, loses: p.loses}
		if contenders > 1 {
			made.starving = make(chan struct{})
		}
		return made, nil
	}}
}

func (p *peer) Turn(ctx context.Context, contender, _ int) (Turn, error) {
	if contender > 0 { // it starves
		p.another.Do(func() { close(p.starving) })
		<-ctx.Done()
		return Turn{}, context.Cause(ctx)
	}
	if p.starving != nil {
		<-p.starving
	}
	p.turns.Add(1)
	return Turn{Waited: time.Nanosecond}, nil
}

func (p *peer) Committed(context.Context) (int, error) { return int(p.turns.Load() - p.loses), nil }
func (p *peer) Close() error                           { return nil }
func (p *peer) PauseAndWake(context.Context) (Woke, error) {
	return Woke{Stored: p.stored, Answer: "OK", Takeover: 2 * time.Second, TTL: time.Second}, nil
}

func TestPeers(t *testing.T) {
	report := measure(t, "cas", nil, (&peer{}).strategy())
	if len(report.Faults) > 0 {
		t.Errorf("faults: %q", report.Faults)
	}
	for _, r := range report.Results {
		if r.System != "peer" || r.Params["contenders"] != "4" {
			continue
		}
		// One of four contenders has all turns, and the waits of the others count too.
		if m, _ := r.Metric("Jain's index"); m.Value() != 0.25 {
			t.Errorf("Jain's index is %v, want 0.25", m.Value())
		}
		if m, _ := r.Metric("never won"); m.Value() != 0.75 {
			t.Errorf("the share that never won is %v, want 0.75", m.Value())
		}
		if m, _ := r.Metric("longest wait"); m.Value() <= 1e-6 {
			t.Errorf("the longest wait is %v ms, that of a winner; contenders starved", m.Value())
		}
	}
	wantFault(t, measure(t, "cas", nil, (&peer{loses: 1}).strategy()), "turns were acknowledged")

	report = measure(t, "pause", nil, (&peer{stored: true}).strategy())
	if len(report.Faults) > 0 {
		t.Errorf("what a peer stores is a finding, no fault: %q", report.Faults)
	}
	for _, r := range report.Results {
		want := 0.0
		if r.System == "peer" {
			want = 1
		}
		if m, ok := r.Metric("late write stored"); !ok || m.Value() != want {
			t.Errorf("%s: late write stored is %v, want %v", r.System, m.Value(), want)
		}
	}
}

// TestTurnsCommitTheSamePayload checks the size of the events that the turns of a store commit,
// which is that of the peers.
func TestTurnsCommitTheSamePayload(t *testing.T) {
	var other atomic.Int64
	report := measure(t, "cas", func(f *faultyStore) {
		f.commit = func(_ int64, b runstore.Batch) (runstore.Committed, error) {
			if len(b.Events) != 1 || len(b.Events[0].Data) != TurnBytes {
				other.Add(1)
			}
			return f.Handle.Commit(context.Background(), b)
		}
	})
	if n := other.Load(); n > 0 || len(report.Results) == 0 {
		t.Errorf("%d turns committed something else than an event of %d bytes", n, TurnBytes)
	}
}

// TestUnreachedSize checks that a result is named by the size that was asked for, with the size that
// was reached beside it.
func TestUnreachedSize(t *testing.T) {
	scale := Smoke()
	scale.Fill = time.Nanosecond // enough for one lease
	report := measureAt(t, scale, "heartbeat", nil)
	if len(report.Results) != 1 || len(report.Faults) > 0 {
		t.Fatalf("got %+v", report)
	}
	r := report.Results[0]
	if m, ok := r.Metric(Reached); r.Params["leases"] != "20" || !ok || m.Value() != 1 || m.Unit != "leases" {
		t.Errorf("got the setting %v and the size %+v, want 20 leases of which 1 was reached", r.Params, m)
	}
}
