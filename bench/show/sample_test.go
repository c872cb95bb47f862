package show

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/bench"
)

// sampleReport returns a report like that of a full run: stores, peers, emulators, a missing
// engine, a fault and notes. Its figures are invented and always the same.
func sampleReport() bench.Report {
	random := rand.New(rand.NewPCG(1, 2))
	samples := func(around float64, n int) (all []float64) {
		for range n {
			all = append(all, around*math.Exp(random.NormFloat64()*0.07))
		}
		return all
	}
	fenced := bench.Guarantee{Token: "the store, inside every write", Clock: "the store's", InFlight: "refused once a later grant exists; nothing of it is stored"}
	r := bench.Report{
		Format: bench.Format, Command: "tapestore bench --all --format html", Version: "(devel), commit 0123456789ab", Scale: "standard",
		Began: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), Took: 11*time.Minute + 5*time.Second,
		Machine: bench.Machine{CPU: "Example CPU @ 2.60GHz", Cores: 2, Memory: 24 << 30, OS: "linux/amd64, kernel 6.1.0", Go: "go1.26.0", SyncMS: 0.21},
		Systems: []bench.System{
			{Name: "memory", Engine: "memory", Version: "-", Topology: "in this process, nothing on disk", Tier: "embedded", Guarantee: fenced},
			{Name: "sqlite", Engine: "sqlite", Version: "3.54.1", Topology: "a file, in this process; every commit is synced", Tier: "embedded", Durable: true, Guarantee: fenced},
			{Name: "postgres", Engine: "postgres", Version: "15.18", Topology: "a server on this machine, over TCP on loopback, pool of 16; every commit is synced", Tier: "local", Durable: true, Guarantee: fenced},
			{Name: "river", Engine: "postgres", Version: "0.40.0", Topology: "beside the store, on the same server", Tier: "local", Durable: true, Peer: true,
				Guarantee: bench.Guarantee{Token: "nobody", Clock: "the database's", InFlight: "it is stored"}},
			{Name: "advisory lock", Engine: "postgres", Version: "15.18", Topology: "beside the store, on the same server", Tier: "local", Durable: true, Peer: true,
				Guarantee: bench.Guarantee{Token: "nobody", Clock: "none: a session's end", InFlight: "it is stored"}},
			{Name: "alloydb", Engine: "alloydb", Missing: "no initdb <b>here</b>"},
			{Name: "bigtable", Engine: "bigtable", Version: "bttest", Topology: "Google's emulator in this process, over gRPC", Tier: "emulator", Guarantee: fenced},
			{Name: "spanner", Engine: "spanner", Version: "1.5.43", Topology: "Google's emulator on this machine", Tier: "emulator", Guarantee: fenced},
		},
		Faults: []bench.Fault{{Part: "commit", System: "sqlite", Text: "reading back: 4,211 events were acknowledged, 4,210 are stored <script>"}},
		Notes:  []bench.Note{{Part: "read", System: "spanner", Text: "a journal of 100000 events was left out: 1200 were filled in 5s"}, {Text: "peers are measured by another command"}},
	}
	add := func(part, group, system, side string, params map[string]string, metrics ...bench.Metric) {
		r.Results = append(r.Results, bench.Result{Part: part, Group: group, System: system, Side: side, Params: params, Metrics: metrics, Verified: "412 events of 16 runs"})
	}
	rate := func(unit string, v float64) bench.Metric {
		return bench.Metric{Name: bench.Rate, Unit: unit, Better: bench.More, Samples: samples(v, 5)}
	}
	ms := func(name string, v float64) bench.Metric {
		return bench.Metric{Name: name, Unit: "ms", Better: bench.Less, Samples: samples(v, 5)}
	}
	speeds := map[string]float64{"memory": 60000, "sqlite": 4000, "postgres": 2100, "river": 900, "advisory lock": 1500, "bigtable": 3000, "spanner": 150}
	for _, s := range r.Systems {
		if s.Missing != "" {
			continue
		}
		speed := speeds[s.Name]
		for _, leases := range []int{1, 16} {
			group := map[int]string{1: "one lease", 16: "16 leases"}[leases]
			for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
				if n < leases || s.Peer && n != 1 && n != 16 && n != 64 {
					continue
				}
				params := map[string]string{"contenders": strconv.Itoa(n), "leases": strconv.Itoa(leases)}
				for i, side := range []string{"optimistic loop", "keeper, back-off", "keeper, hints"} {
					if s.Peer && i > 0 {
						break
					}
					v := speed * (1 - 0.12*float64(i)) / (1 + float64(n)*[]float64{0.05, 0.02, 0.005}[i])
					add("cas", group, s.Name, side, params, rate("wins/s", v), ms("winner p50", float64(n)*1000/v), ms("winner p99", float64(n)*4000/v),
						ms("loser p50", 600/speed), bench.Metric{Name: "attempts per win", Samples: samples(1+float64(n)/4, 5)},
						bench.Metric{Name: "Jain's index", Better: bench.More, Samples: samples(0.9, 1)})
				}
			}
		}
		stored := 0.0
		if s.Peer {
			stored = 1
		}
		add("pause", "a paused holder", s.Name, "keeper", nil, bench.Metric{Name: "late write stored", Samples: []float64{stored}}, ms("takeover", 104))
		for _, n := range []int{1, 64} {
			add("handover", "release to next grant", s.Name, "keeper", map[string]string{"standbys": strconv.Itoa(n)}, ms("next grant p50", 9000/speed*float64(1+n/16)), ms("next grant p95", 30000/speed))
		}
		if s.Peer {
			continue
		}
		for _, payload := range []int{100, 10000} {
			for _, n := range []int{1, 16, 64, 256} {
				params := map[string]string{"writers": strconv.Itoa(n), "payload": strconv.Itoa(payload)}
				v := speed * 1.3 * math.Sqrt(float64(n)) / (1 + float64(payload)/20000)
				add("commit", "append, a run each", s.Name, "tapestore", params, rate("commits/s", v), ms("latency p50", float64(n)*1000/v),
					bench.Metric{Name: "of hand-written", Better: bench.More, Samples: samples(0.9+0.05*math.Log2(float64(n))/4, 5)})
				add("commit", "append, a run each", s.Name, "hand-written", params, rate("commits/s", v*1.05), ms("latency p50", float64(n)*950/v))
				add("commit", "append, a run each", s.Name, "bare insert", params, rate("commits/s", v*1.3), ms("latency p50", float64(n)*800/v))
			}
		}
		for _, n := range []int{1000, 10000, 100000} {
			add("commit", "journal length", s.Name, "tapestore", map[string]string{"length": strconv.Itoa(n)}, rate("commits/s", speed), ms("latency p50", 1000/speed))
		}
		add("heartbeat", "leases of one process", s.Name, "keeper", map[string]string{"leases": "5000"}, rate("renewals/s", 500), bench.Metric{Name: "CPU per renewal", Unit: "µs", Better: bench.Less, Samples: samples(0.02, 5)})
		add("strange", "", s.Name, "only", map[string]string{"mode": "a"}, bench.Metric{Name: "oddity", Unit: "furlongs", Samples: []float64{42.5}})
	}
	return r
}
