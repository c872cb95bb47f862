package faultystores

import (
	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultstest"
)

// networkStores break rules in a way that only a faulty network or a killed server shows.
func networkStores() []Broken {
	broken := func(name, breaks, caught string, flaws faultstest.Flaws) Broken {
		return Broken{name, breaks, caught, func() conformance.Harness { return faultstest.Harness(flaws) }}
	}
	return []Broken{
		broken("sent-again-as-another", "A write whose reply was lost is sent again under a new id.",
			"I8/a-lost-reply-is-resolved-by-the-store", faultstest.Flaws{NewID: true}),
		broken("sent-again-as-another-among-many", "Of appends to many runs, those whose replies were lost are sent again under new ids.",
			"I8/appends-to-many-runs-over-a-bad-network-are-applied-once", faultstest.Flaws{NewID: true}),
		broken("first-copy-not-recalled", "A write that was sent again is applied once more when its first copy arrives.",
			"I8/a-late-copy-of-a-request-is-not-applied-twice", faultstest.Flaws{NewID: true}),
		broken("refused-copy-not-recalled", "A write that was refused when it was sent again is applied when its first copy arrives.",
			"I3/a-request-refused-on-its-repeat-is-refused-in-every-copy", faultstest.Flaws{NewID: true}),
		broken("sent-again-to-the-next-run", "A commit whose reply was lost before a purge is sent again, to the run that was created after it.",
			"I8/a-lost-reply-before-a-purge-is-not-applied-to-the-next-run", faultstest.Flaws{NewID: true}),
		broken("lost-is-unavailable-in-a-history", "A write whose reply was lost is reported as not applied, while other writes continue.",
			"I8/histories-over-a-bad-network-are-linearizable", faultstest.Flaws{Unavailable: true}),
		broken("cut-is-told", "A write whose connection was cut fails, although the network works again.",
			"I8/a-cut-connection-is-no-error-the-caller-must-know", faultstest.Flaws{Unavailable: true}),
		broken("memory-dies-with-the-server", "A restarted server does not recognize the requests that it performed before.",
			"I8/a-killed-server-keeps-what-it-acknowledged-once", faultstest.Flaws{Forgets: true}),
		broken("time-of-the-last-reading", "A handle returns an old reading of the clock, of whatever age.",
			"I7/a-slow-network-shifts-no-time", faultstest.Flaws{OldClock: true}),
		broken("lost-is-unavailable", "A write whose reply was lost is reported as not applied.",
			"I11/an-error-after-a-lost-reply-is-true", faultstest.Flaws{Unavailable: true}),
		broken("given-up-is-not-applied", "A write that its caller gave up in flight is reported as not applied, and arrives later.",
			"I11/an-error-stays-true-when-the-request-arrives-late", faultstest.Flaws{Cancelled: true}),
		broken("deaf-in-a-black-hole", "A call that waits for a reply over a dead network ignores the end of its context.",
			"I11/a-black-hole-does-not-outlive-the-context", faultstest.Flaws{Deaf: true}),
		broken("deaf-to-a-frozen-server", "A call that waits for a frozen server ignores the end of its context.",
			"I11/a-frozen-server-does-not-outlive-the-context", faultstest.Flaws{Deaf: true}),
		broken("fence-checked-when-sent", "The fence is checked before a commit is sent, and not where it is applied.",
			"I3/a-request-that-arrives-after-the-takeover-is-refused", faultstest.Flaws{Unfenced: true}),
		broken("strict-checked-when-sent", "The expiry of a strict lease is judged before a commit is sent, and not where it is applied.",
			"I3/strict-write-in-flight-at-its-expiry-ends-as-declared", faultstest.Flaws{Unfenced: true}),
		broken("repeat-not-fenced", "A commit that was sent again is applied although its fence no longer holds.",
			"I3/a-request-repeated-after-the-takeover-is-refused-in-every-copy", faultstest.Flaws{Unfenced: true}),
	}
}
