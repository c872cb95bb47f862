package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Cases returns all cases, ordered by guarantee.
func Cases() []Case {
	all := slices.Concat(
		exclusiveCases(),   // I1
		tokenCases(),       // I2
		fenceCases(),       // I3
		tokenGuardCases(),  // I1, I2, I3
		strictCases(),      // I3
		clockCases(),       // I7
		atomicCases(),      // I4
		versionCases(),     // I4
		manyRecordsCases(), // I12
		multiCases(),       // I4, I8
		crossrunCases(),    // I3, I4, I8, I11, I12
		journalCases(),     // I5
		readerCases(),      // I6
		onceCases(),        // I8
		grantResultCases(), // I4, I8
		indexCases(),       // I9
		indexBoundCases(),  // I9
		runnableCases(),    // I9
		feedCases(),        // I10
		notifyCases(),      // I10
		runNotifyCases(),   // I10
		staleCases(),       // I5, I9, I12
		errorCases(),       // I11
		crashCases(),       // I3, I4
		historyCases(),     // I1, I3, I5, I8
		limitCases(),       // I12
		progressCases(),    // I13
		formerCases(),      // I2, I3, I9
		linkCases(),        // I3, I5, I8, I10, I11
		abortedCases(),     // I3, I8
		serverCases(),      // I8, I11
	)
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
