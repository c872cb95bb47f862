package bench

import (
	"slices"
	"time"
)

// Format is the version of the JSON form of a Report. It is raised when a field changes its meaning
// or is removed.
const Format = 1

// Report holds the results of one run of the benchmark.
type Report struct {
	Format  int
	Command string // a shell command that repeats the run, without secrets
	Version string // of Tapestore
	Machine Machine
	Scale   string
	// Parts are the names of the parts that were asked for. Reports before November 2026 have none.
	Parts []string `json:",omitempty"`
	// Interrupted is true if the run was ended before it had measured everything.
	Interrupted bool `json:",omitempty"`
	Began       time.Time
	Took        time.Duration // in nanoseconds
	Systems     []System
	Results     []Result
	// Faults are the reasons for which the run fails: counts that disagree, and engines that broke.
	Faults []Fault `json:",omitempty"`
	// Notes list what the run left out, with the reason.
	Notes []Note `json:",omitempty"`
}

// Machine describes the machine of a run.
type Machine struct {
	CPU    string // model
	Cores  int    // that the process may use
	Memory int64  // bytes
	OS     string // GOOS/GOARCH and kernel
	Go     string // version of the Go toolchain
	// SyncMS is the median time of writing 4 KiB and syncing them to the disk of the
	// temporary directory, in milliseconds.
	SyncMS float64
}

// System is a store or a peer that was measured.
type System struct {
	Name     string // as results name it
	Engine   string // "postgres"
	Version  string // of the engine
	Topology string // "a server on this machine, over TCP on loopback"
	Tier     string // "embedded", "local", "emulator", "container" or "service"
	Durable  bool   // an acknowledged write is synced to disk
	Peer     bool   // an alternative to a store of Tapestore
	Missing  string `json:",omitempty"` // why there are no results
	// Guarantee is what the system promises about a lease; set for peers and stores alike.
	Guarantee Guarantee
}

// Emulated reports whether the system's figures are those of an emulator.
func (s System) Emulated() bool { return s.Tier == "emulator" }

// Guarantee describes what a system promises when two processes believe that they hold a lease.
type Guarantee struct {
	Token    string // what checks the fencing token
	Clock    string // whose clock judges expiry
	InFlight string // what happens to a write in flight at a takeover
}

// Result is one data point: the metrics of one system at one setting.
type Result struct {
	Part   string // "cas"
	Group  string // the plot or table it belongs to, within the part: "one lease"
	System string // Name of a System
	Side   string // what was compared: "keeper", "hand-written", "bare insert"
	// Params are the setting: "contenders" → "16".
	Params  map[string]string
	Metrics []Metric
	// Verified describes what was read back, "4,211 events of 16 runs".
	Verified string `json:",omitempty"`
}

// Metric returns the metric with the given name; ok is false if the result has none.
func (r Result) Metric(name string) (m Metric, ok bool) {
	i := slices.IndexFunc(r.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return r.Metrics[i], true
}

// Metric is one figure of a result.
type Metric struct {
	Name   string // "rate"
	Unit   string // "wins/s", "ms", "B", "" for a ratio or a count
	Better Better `json:",omitempty"`
	// Peak is true for a maximum: the metric's value is then the largest sample.
	Peak    bool `json:",omitempty"`
	Samples []float64

	// Of a quantile that Quantiles records, until the result is recorded: the sorted latencies of each
	// round, the quantile, and how many latencies it needs.
	latencies [][]time.Duration
	q         float64
	least     int
}

// Better is the direction of a metric that is an improvement.
type Better string

// The directions. A metric without a direction is a fact, such as a number of attempts.
const (
	More Better = "more"
	Less Better = "less"
)

// Value returns the median of the samples, or the largest of them if the metric is a Peak; 0 if
// there are none.
func (m Metric) Value() float64 {
	if m.Peak && len(m.Samples) > 0 {
		return slices.Max(m.Samples)
	}
	return m.Median()
}

// Median returns the median of the samples, or 0 if there are none.
func (m Metric) Median() float64 { return median(m.Samples) }

// Fault is a reason for which a run fails.
type Fault struct{ Part, System, Text string }

// Note is a remark on what a run left out, or what a reader must know.
type Note struct{ Part, System, Text string }

// Names of metrics that have a meaning of their own.
const (
	// Rate is the metric that most results have: operations a second.
	Rate = "rate"
	// Reached is the size that was reached, where a result's parameters name a size that a limited
	// time may be too short for.
	Reached = "size reached"
)

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}
