package bench

import (
	"slices"
	"time"
)

// Scale sets the sizes of a run. Every setting of a part derives from it, so that a smoke run
// executes the same code as a full one.
type Scale struct {
	Name   string
	Slice  time.Duration // how long one side of a comparison works in one round
	Rounds int           // of a comparison; samples per metric
	// ExactRounds keeps Rounds on emulators too, which otherwise have half of them.
	ExactRounds bool

	Contenders []int // for one lease
	// PeerContenders are those of Contenders with which peers are measured too.
	PeerContenders []int
	Leases         []int // that the contenders share: 1 is one lease
	Standbys       []int // keepers that wait for a lease
	Handovers      int   // per round

	Writers  []int // concurrent commits
	Payloads []int // bytes of an event
	Lengths  []int // events of a journal before the commits that are measured
	Runs     []int // runs in a store before the reads that are measured
	Live     []int // runs under a live lease before a scan for those without a driver
	Sizes    []int // records, or events, of one run
	Handles  []int // of one store, each simulating a process of its own
	// Every is how often each of the handles commits.
	Every time.Duration

	Heartbeats int           // leases that one process holds
	Beating    time.Duration // how long their renewals are measured
	Clients    []int         // concurrent clients of the protocol
	Streams    int           // idle streams of the protocol
	Entries    int           // entries that reactions match; a tenth of it on an emulator
	Reactions  int           // that share the entries; a fifth of them on an emulator
	Workers    []int         // that claim the tasks of one reaction
	Tasks      int           // of that reaction that are open before each round; a quarter of them on an emulator
	// MatcherTTL is the TTL of matchers' leases, five times as long on an emulator.
	MatcherTTL time.Duration

	// Fill bounds the time for filling one store up to a length or a number of runs. Sizes that are
	// not reached are left out, with a note.
	Fill time.Duration
	// Growth replaces Fill in the part scale, on emulators too.
	Growth time.Duration
}

// forEmulator returns the scale for an emulator, whose figures are not ranked: half the rounds unless
// their number is exact, half the time to fill a store, and fewer entries, reactions and tasks. Its
// matchers renew their leases less often.
func (s Scale) forEmulator() Scale {
	if !s.ExactRounds {
		s.Rounds = (s.Rounds + 1) / 2
	}
	s.Fill /= 2
	s.Entries, s.Reactions = max(1, s.Entries/10), max(2, s.Reactions/5)
	s.Tasks = max(min(s.Tasks, 30), s.Tasks/4)
	s.MatcherTTL *= 5
	return s
}

// forSerial returns the scale for an engine that runs one transaction at a time and aborts others.
// It bounds what servers and workers compete for, and lengthens the TTLs, from which the timeouts
// of acquire requests follow, because those may wait for large commits. 64 workers on one reaction
// would wait for minutes. The part scale gets half the time: a statement of such an engine scans whole
// tables, so that a store of the larger sizes is not reached in ten times that either.
func (s Scale) forSerial() Scale {
	s.Entries, s.Reactions = max(min(s.Entries, 40), s.Entries/50), min(s.Reactions, 4)
	s.MatcherTTL *= 3
	s.Growth /= 2
	s.Tasks = min(s.Tasks, 60) // each side claims the remaining ones at its end, in one large commit
	s.Workers = slices.DeleteFunc(slices.Clone(s.Workers), func(n int) bool { return n > emulatorContenders })
	return s
}

// Scales returns the scales in the order of their sizes.
func Scales() []Scale { return []Scale{Smoke(), Standard(), Full()} }

// Smoke exercises every part in seconds. Its figures mean nothing; it checks that what was
// acknowledged is stored.
func Smoke() Scale {
	return Scale{
		Name: "smoke", Slice: 5 * time.Millisecond, Rounds: 2,
		Contenders: []int{1, 4}, PeerContenders: []int{1, 4}, Leases: []int{1, 2}, Standbys: []int{2}, Handovers: 1,
		Writers: []int{1, 4}, Payloads: []int{100}, Lengths: []int{100, 300}, Runs: []int{20, 60}, Live: []int{10, 30},
		Sizes: []int{20, 300}, Handles: []int{1, 2}, Every: 20 * time.Millisecond,
		Heartbeats: 20, Beating: 50 * time.Millisecond, Clients: []int{1, 2}, Streams: 5,
		Entries: 400, Reactions: 4, Workers: []int{1, 4}, Tasks: 30, MatcherTTL: time.Second, Fill: 2 * time.Second, Growth: 2 * time.Second,
	}
}

// Standard takes 12 to 15 minutes for the five engines that keep data, on two cores.
func Standard() Scale {
	return Scale{
		Name: "standard", Slice: 90 * time.Millisecond, Rounds: 5,
		Contenders: []int{1, 2, 4, 8, 16, 32, 64}, PeerContenders: []int{1, 8, 32}, Leases: []int{1, 16}, Standbys: []int{1, 64}, Handovers: 4,
		Writers: []int{1, 16, 64, 256}, Payloads: []int{100, 10_000}, Lengths: []int{1_000, 100_000}, Runs: []int{1_000, 20_000}, Live: []int{100, 10_000},
		Sizes: []int{100, 10_000}, Handles: []int{1, 8, 32}, Every: 200 * time.Millisecond,
		Heartbeats: 5_000, Beating: 5 * time.Second, Clients: []int{1, 16}, Streams: 1_000,
		Entries: 100_000, Reactions: 50, Workers: []int{1, 8, 64}, Tasks: 500, MatcherTTL: time.Second, Fill: 5 * time.Second, Growth: 10 * time.Second,
	}
}

// Full reaches the sizes that docs/performance.md mentions: journals of 10^6 events, stores of 10^6
// runs. It takes hours.
func Full() Scale {
	s := Standard()
	s.Name, s.Slice, s.Rounds = "full", 500*time.Millisecond, 10
	s.PeerContenders = s.Contenders
	s.Writers = []int{1, 2, 4, 8, 16, 32, 64, 128, 256}
	s.Payloads = []int{100, 1_000, 10_000, 100_000}
	s.Lengths = []int{1_000, 10_000, 100_000, 1_000_000}
	s.Runs = []int{1_000, 10_000, 100_000, 1_000_000}
	s.Live = []int{100, 10_000, 100_000}
	s.Sizes = []int{1_000, 100_000, 1_000_000}
	s.Tasks = 2_000
	s.Handovers, s.Beating, s.Fill, s.Growth = 20, 30*time.Second, 10*time.Minute, 20*time.Minute
	return s
}
