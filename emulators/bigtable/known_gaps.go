package bigtable

import "github.com/tapestore/tapestore/emulators"

// KnownGaps lists the known differences between the emulator and the service. A difference that is
// not in the list counts as a bug of the adapter.
func KnownGaps() []emulators.KnownGap {
	return []emulators.KnownGap{
		{
			Emulator: "Mutations before a bad one in the same request stay applied.",
			Service:  "A row's mutations are applied whole or not at all.",
			Cases:    []string{"I4/a-batch-applies-whole", "I4/a-failing-guard-leaves-nothing"},
			Handled:  "The gate checks all mutations of a row first: families, timestamps, sizes, types of mutations.",
		},
		{
			Emulator: "Takes any number of mutations, and row keys, qualifiers and cells of any length.",
			Service: "100,000 mutations in a row's request or in a request for several rows; keys of 4 KiB, qualifiers of 16 KiB, " +
				"cells of 100 MB.",
			Cases:   []string{"I12/fullest-batch-works", "I12/largest-payloads-work", "I12/longest-names-work"},
			Handled: "The gate refuses what is beyond, with INVALID_ARGUMENT.",
		},
		{
			Emulator: "Looks at a filter only when it meets a row, and not at its size.",
			Service:  "20,480 bytes, 20 levels of chains and interleaves, and at least two filters in each.",
			Cases:    []string{"I9/pages-join-without-gap-or-repeat", "I12/reads-are-bounded"},
			Handled:  "The gate looks at filters as such, and refuses with INVALID_ARGUMENT.",
		},
		{
			Emulator: "Has every project and instance, and takes any name of a table or family.",
			Service:  "An instance is made first; tables have names of 1 to 50 characters, families of 1 to 64, and there are 100 families.",
			Handled:  "The gate checks names and numbers. Instances are whatever a client names.",
		},
		{
			Emulator: "A row may grow without a bound.",
			Service:  "A row beyond 256 MiB cannot be read whole; rows are to stay far below 100 MB.",
			Cases:    []string{"I5/a-long-journal-reads-whole-in-pages", "I8/many-batches-are-remembered"},
			Handled:  "Not by the gate, which knows no rows: the adapter's tests measure its rows.",
		},
		{
			Emulator: "In MutateRows an unknown family or a bad row fails its entry with INTERNAL.",
			Service:  "Answers each entry with a code of its own, and applies the good ones.",
			Cases:    []string{"I9/every-acknowledged-entry-is-found"},
			Handled:  "The gate answers the bad entries, and passes only the others on.",
		},
		{
			Emulator: "A read that meets a write of the same row may see some columns twice and others not at all.",
			Service:  "A read sees each row as it was at one moment.",
			Cases:    []string{"I4/readers-never-see-half-a-batch", "I6/reads-never-fall-behind-concurrent-writers"},
			Handled:  "The gate keeps reads and writes of a row apart.",
		},
		{
			Emulator: "A write that meets DropRowRange is lost, though acknowledged.",
			Service:  "It is before it or after it.",
			Handled:  "The gate lets DropRowRange run alone.",
		},
		{
			Emulator: "Garbage is collected every second or so, but only once ModifyColumnFamilies was called on any table; " +
				"a write to a row without cells is then lost if it meets the collector, though acknowledged, and a column that " +
				"was collected is read twice once it is written again.",
			Service: "Collects in its own time, up to a week later, and loses nothing that is acknowledged.",
			Cases:   []string{"I3/refused-batch-is-not-remembered", "I4/purge-removes-a-run-whole", "I8/many-batches-are-remembered"},
			Handled: "Tables are to be created with their families and policies in one call; the collector then does not run. " +
				"Policies that intersect others are never carried out.",
		},
		{
			Emulator: "App profiles are ignored, and cannot be asked about: UNIMPLEMENTED.",
			Service: "Conditional mutations need a profile with single-cluster routing and single-row transactions, " +
				"and fail with FAILED_PRECONDITION under another.",
			Cases:   []string{"I1/one-winner-per-round-of-an-acquire-race"},
			Handled: "Not at all: it shows only on the service.",
		},
		{
			Emulator: "Change streams, backups, IAM and instances: no method, or one that ends the emulator's process.",
			Service:  "Has them.",
			Handled:  "The gate answers UNIMPLEMENTED.",
		},
		{
			Emulator: "Every filter is applied to every cell of a row, and a range of rows is collected and sorted before its first is sent.",
			Service:  "Reads what the range, the families and the columns ask for.",
			Cases:    []string{"I5/a-long-journal-reads-whole-in-pages", "I9/pages-join-without-gap-or-repeat"},
			Handled:  "Its speed says nothing about the service's.",
		},
		{
			Emulator: "One process, one clock, no replica: nothing is ever behind, moved or failed over.",
			Service:  "Tablets move between servers, each with its clock; other clusters get writes later, and after a failover some never.",
			Cases:    []string{"I2/token-beyond-the-known-means-store-behind", "I7/store-clock-never-goes-back"},
			Handled:  "Not at all: it shows only on the service.",
		},
		{
			Emulator: "Holds everything in memory, and forgets it when it ends.",
			Service:  "A write that was acknowledged is on disk.",
			Cases:    []string{"I8/a-killed-server-keeps-what-it-acknowledged-once"},
			Handled:  "The case is not applicable: there is no server to start again on what it stored.",
		},
	}
}
