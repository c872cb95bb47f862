package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance/internal/cases"
	"github.com/tapestore/tapestore/conformance/internal/claimcases"
	"github.com/tapestore/tapestore/conformance/internal/crossruncases"
	"github.com/tapestore/tapestore/conformance/internal/leasecases"
)

// Cases returns all cases, ordered by guarantee.
func Cases() []Case {
	all := slices.Concat(
		cases.Exclusive(),       // I1
		cases.Tokens(),          // I2
		cases.Fences(),          // I3
		cases.TokenGuards(),     // I1, I2, I3
		cases.MutationTargets(), // I3
		cases.Strict(),          // I3
		cases.Clocks(),          // I7
		cases.Atomic(),          // I4
		cases.Versions(),        // I4
		cases.ManyRecords(),     // I12
		cases.Multi(),           // I4, I8
		crossruncases.Cases(),   // I3, I4, I8, I11, I12
		claimcases.Cases(),      // I4, I9
		cases.Journals(),        // I5
		cases.Readers(),         // I6
		cases.Once(),            // I8
		cases.GrantResults(),    // I4, I8
		cases.Indexes(),         // I9
		cases.IndexBounds(),     // I9
		cases.Runnable(),        // I9
		cases.Feeds(),           // I10
		cases.Notify(),          // I10
		cases.RunNotify(),       // I10
		cases.Stale(),           // I5, I9, I12
		cases.Errors(),          // I11
		cases.Crashes(),         // I3, I4
		cases.Histories(),       // I1, I3, I5, I8
		cases.Limits(),          // I12
		cases.Moves(),           // I2, I4
		cases.Progress(),        // I13
		cases.Former(),          // I2, I3, I9
		cases.Terms(),           // I2
		cases.Links(),           // I3, I5, I8, I10, I11
		cases.Aborted(),         // I3, I8
		cases.Servers(),         // I8, I11
		leasecases.Cases(),      // I1, I3, I13
	)
	return ordered(all)
}

// MutationTargets returns the names of the ways to change a run under a fence: each method of the
// contract that takes one, with each kind of write. The list is generated from the interface, and the
// case I3/every-mutation-target-refuses-a-stale-token presents a stale token to each.
func MutationTargets() ([]string, error) {
	targets, err := cases.Targets()
	var names []string
	for _, target := range targets {
		names = append(names, target.String())
	}
	return names, err
}

// CrossRunCases returns the cases of steps over two runs, which package crossrun makes on any
// store, ordered by guarantee. Cases contains them.
func CrossRunCases() []Case { return ordered(crossruncases.Cases()) }

// ordered sorts cases by guarantee and makes each Doc one line.
func ordered(all []Case) []Case {
	for i := range all {
		all[i].Doc = strings.Join(strings.Fields(all[i].Doc), " ")
	}
	slices.SortStableFunc(all, func(a, b Case) int { return number(a.Guarantee) - number(b.Guarantee) })
	return all
}

// Guarantees returns the numbers of all guarantees.
func Guarantees() []string {
	var all []string
	for i := 1; i <= 13; i++ {
		all = append(all, fmt.Sprintf("I%d", i))
	}
	return all
}

// number returns the n of guarantee "In", by which cases are sorted.
func number(guarantee string) (n int) {
	_, err := fmt.Sscanf(strings.TrimPrefix(guarantee, "I"), "%d", &n)
	if err != nil {
		panic(fmt.Sprintf("conformance: %q is no guarantee", guarantee))
	}
	return n
}

// Find returns the case called name, written guarantee/name.
func Find(name string) (Case, bool) {
	for _, c := range Cases() {
		if c.Guarantee+"/"+c.Name == name {
			return c, true
		}
	}
	return Case{}, false
}
