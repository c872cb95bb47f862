package harness

import (
	"slices"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
)

// Case is one rule of the contract and the test that proves it.
type Case struct {
	// Guarantee is the number of the guarantee that the case proves: I1 to I13.
	Guarantee string
	// Name states the rule, in small letters with hyphens.
	Name string
	// Needs lists what the case requires of the store or the harness.
	Needs []Need
	// Overtakes reports that the case blocks a writer at the engine and then requires another
	// writer of the same run to commit first, as a takeover must (I3). The harness's NewOvertaking
	// makes the store of such a case.
	Overtakes bool
	// Doc says in a few sentences what happens in a full run, what must hold, and which bug the
	// case catches. [Cases] returns Doc as one line.
	Doc string
	// Run proves the rule on an empty store.
	Run func(t T, e *Env)
}

// Need is a feature that only some stores or harnesses offer.
type Need struct {
	name, about string
	missing     func(e *Env) (reason string)
}

// String returns the need's name, such as "network".
func (n Need) String() string { return n.name }

// About returns what the need is, in a few words.
func (n Need) About() string { return n.about }

// The needs that a case may list.
var (
	NeedSkew = Need{"skew", "handles of processes whose clock the case sets wrong (Instance.OpenSkewed)", func(e *Env) string {
		return reasonIf(e.OpenSkewed == nil, "no process's clock to set wrong: the harness has no OpenSkewed")
	}}
	NeedBlockWriters = Need{"block-writers", "writers blocked at the engine (Instance.BlockWriters)", func(e *Env) string {
		return reasonIf(e.BlockWriters == nil, "the harness has no BlockWriters")
	}}
	NeedProcesses = Need{"processes", "a store that another process can open (Instance.URL)", func(e *Env) string {
		return reasonIf(e.URL == "", "the store lives in one process: the harness has no URL")
	}}
	NeedNetwork = Need{"network", "a network between handles and the store (Instance.Network)", func(e *Env) string {
		return reasonIf(e.Network == nil, "no network to harm: the harness has no Network")
	}}
	NeedAborts = Need{"aborts", "an engine that aborts transactions (Instance.Aborts)", func(e *Env) string {
		return reasonIf(e.Aborts == nil, "nothing aborts transactions: the harness has no Aborts")
	}}
	// NeedServer makes the harness's NewServed the source of the case's store.
	NeedServer = Need{"server", "a server of the case's own, which the case kills and stops (Harness.NewServed)", func(e *Env) string {
		return reasonIf(e.Server == nil, "no server to kill: the harness has no NewServed")
	}}
	NeedMulti = Need{"multi", "a store that is a MultiCommitter", func(e *Env) string {
		_, ok := runstore.As[runstore.MultiCommitter](e.Store)
		return reasonIf(!ok, "the store is no MultiCommitter")
	}}
	// NeedIntent leaves the case out of a quick run on a costly engine that implements
	// MultiCommitter, because such steps exercise no code of the engine's own.
	NeedIntent = Need{"intent", "steps over two runs by intent", func(e *Env) string {
		_, multi := runstore.As[runstore.MultiCommitter](e.Store)
		return reasonIf(multi && e.costly && !effort.Full(), "left to a full run: steps by intent on a costly engine that makes them natively")
	}}
	// NeedCheap leaves a slow case of the lease runtime out of a quick run on a costly engine. The other
	// engines run it, and other cases make the same calls of the costly one.
	NeedCheap = Need{"cheap", "an engine that is not costly (Harness.Costly), or a full run", func(e *Env) string {
		return reasonIf(e.costly && !effort.Full(), "left to a full run: the lease runtime on a costly engine")
	}}
	NeedEpoch = Need{"epoch", "a store that is an EpochManager", func(e *Env) string {
		_, ok := runstore.As[runstore.EpochManager](e.Store)
		return reasonIf(!ok, "the store is no EpochManager")
	}}
	NeedMove = Need{"move", "a store that is a Mover and an EpochManager", func(e *Env) string {
		_, moves := runstore.As[runstore.Mover](e.Store)
		_, epochs := runstore.As[runstore.EpochManager](e.Store)
		return reasonIf(!moves || !epochs, "the store is no Mover, or no EpochManager")
	}}
	NeedNotify = Need{"notify", "a store that is a Notifier", func(e *Env) string {
		_, ok := runstore.As[runstore.Notifier](e.Store)
		return reasonIf(!ok, "the store is no Notifier")
	}}
	NeedRunNotify = Need{"run-notify", "a store that is a RunNotifier", func(e *Env) string {
		_, ok := runstore.As[runstore.RunNotifier](e.Store)
		return reasonIf(!ok, "the store is no RunNotifier")
	}}
	NeedTerms = Need{"terms", "a store that is a TermReader", func(e *Env) string {
		_, ok := runstore.As[runstore.TermReader](e.Store)
		return reasonIf(!ok, "the store is no TermReader")
	}}
	NeedStale = Need{"stale", "a store that is a StaleReader", func(e *Env) string {
		_, ok := runstore.As[runstore.StaleReader](e.Store)
		return reasonIf(!ok, "the store is no StaleReader")
	}}
)

// NewNeed returns a need of a case: missing returns why it is not met, or "".
func NewNeed(name, about string, missing func(e *Env) (reason string)) Need {
	return Need{name, about, missing}
}

// Missing returns why the first of the case's needs that is not met is missing, or "" if all are
// met.
func (c Case) Missing(e *Env) (reason string) {
	for _, n := range c.Needs {
		if reason := n.missing(e); reason != "" {
			return reason
		}
	}
	return ""
}

// needs reports whether c lists need.
func (c Case) needs(need Need) bool {
	return slices.ContainsFunc(c.Needs, func(n Need) bool { return n.name == need.name })
}

// reasonIf returns reason if missing, else "".
func reasonIf(missing bool, reason string) string {
	if missing {
		return reason
	}
	return ""
}
