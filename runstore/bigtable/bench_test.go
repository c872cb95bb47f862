package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The benchmarks print both sides of each comparison from one run, in turn, through
// clients made alike on one emulator in this process. What they measure is the work of
// client and adapter, and how the emulator's filters take to the rows; they say nothing
// of the service:
//
//	go test -run '^$' -bench . ./runstore/bigtable

// rounds is how often the sides of a comparison take turns.
const rounds = 7

// rate performs n operations with so many clients, and returns how many a second.
func rate(b *testing.B, clients, n int, do func(i int) error) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := do(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// rig is a store and a plain client on one table.
type rig struct {
	store *bigtable.Store
	raw   *client.Table
}

func newRig(b *testing.B) *rig {
	b.Helper()
	server, err := emulators.Bigtable(b.Context(), nil)
	emulators.Require(b, err)
	b.Cleanup(func() { _ = server.Close() })
	table := server.NewTable()
	r := &rig{}
	r.store, err = bigtable.Open(b.Context(), &bigtable.Options{
		Project: table.Project, Instance: table.Instance, Table: table.Table, Emulator: server.Address(),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.store.Close() })
	raw, err := client.NewClientWithConfig(b.Context(), table.Project, table.Instance, client.ClientConfig{
		MetricsProvider: client.NoopMetricsProvider{}, DisableDynamicChannelPool: true, DisableConnectionRecycler: true,
		DisableDirectAccess: true, DisableSession: true,
	}, option.WithEndpoint("passthrough:///"+server.Address()), option.WithoutAuthentication(), option.WithGRPCConnectionPool(1),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = raw.Close() })
	r.raw = raw.Open(table.Table)
	return r
}

// hold creates a run and takes its lease.
func (r *rig) hold(b *testing.B, id runstore.RunID) runstore.Lease {
	b.Helper()
	created, err := r.store.CreateRun(b.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL}})
	if err != nil {
		b.Fatal(err)
	}
	return created.Lease
}

var payload = make([]byte, 100)

func (r *rig) append(ctx context.Context, lease runstore.Lease) error {
	batch := runstore.NewBatch(lease.Run, lease.Fence())
	batch.Append("bench", payload)
	_, err := r.store.Commit(ctx, batch)
	return err
}

// written returns how many bytes an append writes: the revision, the head, and on
// average half of a full cell of events.
func (r *rig) written(b *testing.B, lease runstore.Lease) (head, event int) {
	b.Helper()
	row, err := r.raw.ReadRow(b.Context(), bigtable.RunKey(lease.Run))
	if err != nil {
		b.Fatal(err)
	}
	for _, item := range row["h"] {
		head += len(item.Value)
	}
	for _, item := range row["e"] {
		event = max(event, len(item.Value)/2)
	}
	return head, event
}

// BenchmarkAppend is a fenced append to runs of their own, against a hand-written
// conditional mutation with one range filter that writes the same bytes to a small row.
func BenchmarkAppend(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r := newRig(b)
			leases := make([]runstore.Lease, clients)
			for i := range leases {
				leases[i] = r.hold(b, runstore.RunID(fmt.Sprintf("f47ac10b-58cc-4372-a567-0e02b2c3%04d", i)))
				for range 50 {
					if err := r.append(b.Context(), leases[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
			head, event := r.written(b, leases[0])
			values := [2][]byte{make([]byte, head), make([]byte, event)}
			hand := func(i int) error {
				m := client.NewMutation()
				m.Set("h", "hand", 0, values[0])
				m.Set("e", "hand", 0, values[1])
				m = client.NewCondMutation(client.ColumnRangeFilter("h", "hand", "hand\x00"), m, m)
				var matched bool
				return r.raw.Apply(b.Context(), fmt.Sprintf("hand%04d", i), m, client.GetCondMutationResult(&matched))
			}
			var rates [2][]float64
			n := max(clients, b.N/rounds)
			for range rounds {
				rates[0] = append(rates[0], rate(b, clients, n, func(i int) error { return r.append(b.Context(), leases[i]) }))
				rates[1] = append(rates[1], rate(b, clients, n, hand))
			}
			ratios := make([]float64, rounds)
			for i := range ratios {
				ratios[i] = rates[0][i] / rates[1][i]
			}
			b.ReportMetric(median(rates[0]), "tapestore/s")
			b.ReportMetric(median(rates[1]), "hand/s")
			b.ReportMetric(median(ratios), "of-hand")
			b.ReportMetric(0, "ns/op") // of no meaning: an operation of each side
		})
	}
}

// BenchmarkLongJournal is an append to a run with 1,000 events, and to one with a
// million, in turn.
func BenchmarkLongJournal(b *testing.B) {
	r := newRig(b)
	lengths := []int{1_000, 1_000_000}
	leases := make([]runstore.Lease, len(lengths))
	for i, length := range lengths {
		leases[i] = r.hold(b, runstore.RunID(fmt.Sprint("run of ", length)))
		for n := 0; n < length; n += runstore.MaxEvents {
			batch := runstore.NewBatch(leases[i].Run, leases[i].Fence())
			for range runstore.MaxEvents {
				batch.Append("bench", payload)
			}
			if _, err := r.store.Commit(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ResetTimer()
	rates := make([][]float64, len(lengths))
	n := max(200, b.N/rounds)
	for range rounds {
		for i := range lengths {
			rates[i] = append(rates[i], rate(b, 1, n, func(int) error { return r.append(b.Context(), leases[i]) }))
		}
	}
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = rates[0][i] / rates[1][i]
	}
	for i, length := range lengths {
		b.ReportMetric(median(rates[i]), fmt.Sprintf("at-%d/s", length))
	}
	b.ReportMetric(median(ratios), "cost-ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAcquire is 16 contenders for one lease, each of whom lets it go as soon as
// it has it. Every grant must have a token of its own.
func BenchmarkAcquire(b *testing.B) {
	r := newRig(b)
	lease := r.hold(b, "run")
	if _, err := r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		b.Fatal(err)
	}
	var attempts atomic.Int64
	var mu sync.Mutex
	var waits []float64
	tokens := map[runstore.Token]int{}
	n := max(64, b.N)
	wins := rate(b, 16, n, func(i int) error {
		for {
			began := time.Now()
			lease, err := r.store.AcquireLease(b.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i)), TTL: time.Minute},
			})
			attempts.Add(1)
			if errors.Is(err, runstore.ErrLeaseHeld) {
				mu.Lock()
				waits = append(waits, float64(time.Since(began).Microseconds())/1000)
				mu.Unlock()
				continue
			}
			if err != nil {
				return err
			}
			mu.Lock()
			tokens[lease.Token]++
			mu.Unlock()
			_, err = r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		}
	})
	for token, n := range tokens {
		if n != 1 {
			b.Errorf("token %v was granted %d times", token, n)
		}
	}
	if len(tokens) != n {
		b.Errorf("%d tokens for %d wins", len(tokens), n)
	}
	b.ReportMetric(wins, "wins/s")
	b.ReportMetric(float64(attempts.Load())/float64(n), "attempts/win")
	if len(waits) > 0 {
		b.ReportMetric(median(waits), "loser-ms")
	}
	b.ReportMetric(0, "ns/op")
}
