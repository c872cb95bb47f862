package protocol

import (
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/conformance"
)

// T is the part of testing.T that a case uses.
type T = conformance.T

// Case is one rule of the protocol and the test that proves it.
type Case struct {
	// Group is the guarantee that the case proves, such as T2, or the part of the protocol that its
	// check covers, such as effects.
	Group string
	// Check is the number of the client-visible check; 0 for a case that proves a guarantee.
	Check int
	// Name states the rule, in small letters with hyphens.
	Name string
	// Doc states the rule in a sentence.
	Doc string
	// Needs lists the capabilities that the case requires.
	Needs []Need
	// Alone reports that no other case may run at the same time.
	Alone bool
	Run   func(t T, e *Env)
}

// ID returns the case's full name: T2/first-decision-wins, effects/22-first-outcome-stays.
func (c Case) ID() string { return c.Group + "/" + c.name() }

func (c Case) name() string {
	if c.Check == 0 {
		return c.Name
	}
	return fmt.Sprintf("%d-%s", c.Check, c.Name)
}

// Need is a capability of the server or of the target that a case requires.
type Need struct {
	name, about string
	// missing returns why the capability is absent, or "" if it is present.
	missing func(*Server) string
}

// String returns the need's name, such as "grants".
func (n Need) String() string { return n.name }

// About returns a short description of the need.
func (n Need) About() string { return n.about }

// The needs of the suite's cases.
var (
	NeedGrants   = Need{"grants", "BeginRun returns a grant, which later writes can present", func(s *Server) string { return absent(s.Grants, "the server returns no grants") }}
	NeedRefusals = Need{"refusals", "the server refuses a driver's write without a fence, on some connection", func(s *Server) string {
		return absent(s.Mode == ModeConnection || s.Mode == ModeRequired, "the server takes a driver's writes without a fence")
	}}
	NeedGenerations = Need{"generations", "claims have generations, which reports can present", func(s *Server) string {
		return absent(s.Generations, "the server's claims have no generation")
	}}
	NeedBusinessKeys = Need{"business-keys", "BeginEffect accepts a business key", func(s *Server) string {
		return absent(s.BusinessKeys, "the server accepts no business keys on its store")
	}}
	NeedValues    = Need{"values", "the server serves values", func(s *Server) string { return absent(s.Values, "the server does not serve values") }}
	NeedFeeds     = Need{"feeds", "the server serves the feed of all runs", func(s *Server) string { return absent(s.Feeds, "the server does not serve the feed of all runs") }}
	NeedReactions = Need{"reactions", "the server serves reactions and their tasks", func(s *Server) string { return absent(s.Reactions, "the server does not serve reactions") }}
	NeedReplicas  = Need{"replicas", "the target can start several servers on one store, which a case may kill and pause", func(s *Server) string {
		return absent(s.target.Replicas != nil, "the target cannot start servers that the case may kill and pause")
	}}
	NeedProbes  = Need{"probes", "the target names the server's HTTP probes", func(s *Server) string { return absent(s.target.Probes != "", "the target names no HTTP probes") }}
	NeedPrivate = Need{"private", "the target can start a server that a case may end", func(s *Server) string {
		return absent(s.target.Private != nil, "the target cannot start a server that the case may end")
	}}
	NeedSecond = Need{"second", "the target can start a second server beside the first", func(s *Server) string {
		return absent(s.target.Second != nil, "the target cannot start a second server")
	}}
	NeedBeside = Need{"beside", "the target can start another server on the same store", func(s *Server) string {
		return absent(s.target.Beside != nil, "the target cannot start another server on the same store")
	}}
)

func absent(present bool, reason string) string {
	if present {
		return ""
	}
	return reason
}

func (c Case) missing(s *Server) string {
	for _, n := range c.Needs {
		if reason := n.missing(s); reason != "" {
			return reason
		}
	}
	return ""
}

// Cases returns all cases: those of the guarantees, then those of the checks.
func Cases() []Case {
	all := slices.Concat(
		atomicCases(),         // T1
		firstCases(),          // T2
		claimCases(),          // T3
		signalCases(),         // T4
		businessCases(),       // T5
		cursorCases(),         // T6
		onceCases(),           // T7
		valueGuaranteeCases(), // T8
		appendCases(),         // T9
		cutCases(),            // T10
		zombieCases(),         // T11
		chargeCases(),         // T12
		runCases(),            // checks 1 to 11
		journalCases(),        // checks 12 to 17
		effectCases(),         // checks 18 to 31
		outboxCases(),         // checks 32 to 40
		obligationCases(),     // checks 41 to 48
		budgetCases(),         // checks 49 and 50
		gateCases(),           // checks 51 to 53
		timerCases(),          // checks 54 and 55
		valueCases(),          // checks 56 to 58
		feedCases(),           // checks 59 to 62
		matchCases(),          // checks 63 to 66 and 74
		reactionCases(),       // checks 67 and 68
		claimedCases(),        // checks 69 and 71 to 73
		taskCases(),           // check 70
		compactionCases(),     // checks 75 to 77
		sessionCases(),        // checks 78 to 82
		processCases(),        // checks 83 to 85
	)
	slices.SortStableFunc(all, func(a, b Case) int {
		if x, y := slices.Index(Groups(), a.Group), slices.Index(Groups(), b.Group); x != y {
			return x - y
		}
		return a.Check - b.Check
	})
	return all
}

// Find returns the case with the given ID.
func Find(id string) (Case, bool) {
	for _, c := range Cases() {
		if c.ID() == id {
			return c, true
		}
	}
	return Case{}, false
}

// titles lists the groups with their short names, in the order of reports.
var titles = [][2]string{
	{"T1", "One commit: row, counter and journal entry"},
	{"T2", "The first decision, effect and outcome win"},
	{"T3", "One claimer, and a stale claim changes nothing"},
	{"T4", "No signal is lost between look and park"},
	{"T5", "A business key is one effect over all runs"},
	{"T6", "Cursors of the feed skip and repeat nothing"},
	{"T7", "Each entry is handled once by each reaction"},
	{"T8", "Values by compare-and-set, each version watched"},
	{"T9", "An append to a session is one step"},
	{"T10", "Compaction of settled runs only, cut anywhere"},
	{"T11", "A zombie writes nothing"},
	{"T12", "Charges add up"},
	{"runs", "Checks of runs"},
	{"journal", "Checks of a run's journal"},
	{"decisions", "Checks of decisions"},
	{"effects", "Checks of effects"},
	{"outbox", "Checks of the outbox"},
	{"obligations", "Checks of obligations"},
	{"budgets", "Checks of budgets"},
	{"gates", "Checks of gates"},
	{"timers", "Checks of timers"},
	{"values", "Checks of values"},
	{"feeds", "Checks of the feeds"},
	{"reactions", "Checks of reactions"},
	{"tasks", "Checks of tasks"},
	{"compaction", "Checks of compaction"},
	{"sessions", "Checks of sessions"},
	{"process", "Checks of the process"},
}

// Groups returns the groups of the cases, in the order of reports.
func Groups() []string {
	var all []string
	for _, t := range titles {
		all = append(all, t[0])
	}
	return all
}

// Title returns the short name of a group, or "" for any other text.
func Title(group string) string {
	for _, t := range titles {
		if t[0] == group {
			return t[1]
		}
	}
	return ""
}
