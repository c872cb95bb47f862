package tapeserver_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/postgres"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// BenchmarkIdleStreams measures what 1,000 idle SubscribeRun streams cost 16 clients that
// record decisions in other runs. An iteration is a round of each side, without and with
// the streams, on one server and store; the order changes from round to round. The cost is
// the median over the rounds, so ask for ten or more: -benchtime 10x.
func BenchmarkIdleStreams(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		benchmarkIdleStreams(b, "sqlite:"+filepath.Join(b.TempDir(), "tape.db"), 4000)
	})
	b.Run("postgres", func(b *testing.B) {
		server, err := emulators.Postgres(b.Context(), &emulators.PostgresOptions{Durable: true})
		emulators.Require(b, err)
		b.Cleanup(func() { _ = server.Close() })
		db, err := server.NewDatabase(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		benchmarkIdleStreams(b, db.URL, 1500)
	})
}

func benchmarkIdleStreams(b *testing.B, url string, decisions int) {
	const writers, streams, streamsPerConnection = 16, 1000, 50
	store, err := runstore.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	dial := serveTCP(b, store)
	var clients []tapepb.TapeClient
	for range max(writers, streams/streamsPerConnection) {
		clients = append(clients, dial())
	}
	var runs []string // the first are written, the others followed
	for i := range writers + streams {
		r, err := clients[0].BeginRun(b.Context(), beginRequest(fmt.Sprint("run-", i)))
		if err != nil {
			b.Fatal(err)
		}
		runs = append(runs, r.GetRunId())
	}
	index := make([]int64, writers)
	write := func(n int) (perSecond float64) {
		var left atomic.Int64
		left.Store(int64(n))
		var all sync.WaitGroup
		began := time.Now()
		for w := range writers {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					req := &tapepb.RecordDecisionRequest{RunId: runs[w], DecisionIndex: index[w], Model: "m"}
					if _, err := clients[w].RecordDecision(b.Context(), req); err != nil {
						b.Error(err)
						return
					}
					index[w]++
				}
			})
		}
		all.Wait()
		return float64(n) / time.Since(began).Seconds()
	}
	// side returns the decisions per second while so many streams are open.
	side := func(streams int) float64 {
		ctx, cancel := context.WithCancel(b.Context())
		var open, ended sync.WaitGroup
		open.Add(streams)
		for i := range streams {
			ended.Go(func() {
				begun := sync.OnceFunc(open.Done)
				defer begun()
				stream, err := clients[i/streamsPerConnection].SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: runs[writers+i]})
				if err != nil {
					b.Error(err)
					return
				}
				for {
					if _, err := stream.Recv(); err != nil {
						return
					}
					begun()
				}
			})
		}
		open.Wait()
		defer ended.Wait()
		defer cancel()
		write(decisions / 4) // until the streams are idle
		return write(decisions)
	}
	var without, with, cost []float64
	for round := 0; b.Loop(); round++ {
		var pair [2]float64
		for _, i := range []int{round % 2, 1 - round%2} {
			pair[i] = side(i * streams)
		}
		without, with = append(without, pair[0]), append(with, pair[1])
		cost = append(cost, 100*(1-pair[1]/pair[0]))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(without), "alone/s")
	b.ReportMetric(median(with), "with-streams/s")
	b.ReportMetric(median(cost), "%cost")
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// serveTCP serves a store over loopback, and returns a function that makes clients with a
// connection each.
func serveTCP(b *testing.B, store runstore.RunStore) (dial func() tapepb.TapeClient) {
	b.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- tapeserver.New(store, nil).Serve(ctx, lis) }()
	b.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			b.Errorf("Serve = %v", err)
		}
	})
	return func() tapepb.TapeClient {
		conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		return tapepb.NewTapeClient(conn)
	}
}
