package spanner

import "github.com/tapestore/tapestore/emulators"

// KnownGaps lists the known differences between the emulator and the service, as of emulator
// 1.5.28. A difference that is not in the list counts as a bug of the adapter.
func KnownGaps() []emulators.KnownGap {
	return []emulators.KnownGap{
		{
			Emulator: "Runs one read-write transaction per database at a time, whatever rows it is about: a second one is aborted, or, with a " +
				"probability of 20 %, aborts the first.",
			Service: "Locks rows and columns; of two transactions that want the same, the older wins.",
			Cases:   []string{"I1/one-winner-per-round-of-an-acquire-race"},
			Handled: "spanner.Options.AbortProbability chooses who yields. Clients run aborted transactions again. What it costs says " +
				"nothing about the service.",
		},
		{
			Emulator: "Remembers the last 32 transactions of a session, each read being one, and none that is older than a read-write " +
				"transaction in use. What it forgot fails with NOT_FOUND or FAILED_PRECONDITION.",
			Service: "A multiplexed session, the only one that a client has, runs any number at a time.",
			Cases:   []string{"I1/one-winner-per-round-of-an-acquire-race"},
			Handled: "Where a probe finds it so, the proxy runs each transaction on a session of its own, and read-only ones by their " +
				"timestamps. What is forgotten all the same is ABORTED.",
		},
		{
			Emulator: "ABORTED comes without RetryInfo.",
			Service:  "Tells when to try again.",
			Handled:  "The proxy adds it: a few milliseconds, at random. Without, clients would wait for longer and longer.",
		},
		{
			Emulator: "Keeps a read-write transaction for ever whose client has gone, and the database with it.",
			Service:  "May abort it once nothing was asked in it for 10 s.",
			Cases:    []string{"I4/a-killed-process-leaves-whole-batches-only"},
			Handled:  "The proxy aborts it after spanner.Options.Idle, and at once where its begin was never answered.",
		},
		{
			Emulator: "A Commit that is repeated is answered as the first, but only until the session's next transaction; DML that is " +
				"repeated with its number is done once, but returns its rows once too.",
			Service: "Answers as before.",
			Cases:   []string{"I8/a-lost-reply-is-resolved-by-repeating", "I8/a-late-copy-of-a-request-is-not-applied-twice"},
			Handled: "The proxy keeps the answers: to Commits of the last 10,000 transactions, and to DML as long as its transaction is open.",
		},
		{
			Emulator: "Refuses a schema change while a read-write transaction or another change is under way, with FAILED_PRECONDITION.",
			Service:  "Changes queue up, beside transactions.",
			Handled:  "The proxy has it wait.",
		},
		{
			Emulator: "BatchWrite is UNIMPLEMENTED.",
			Service:  "Has it.",
			Handled:  "The proxy commits each group by itself, in order. On the service a group may be applied more than once.",
		},
		{
			Emulator: "Takes any number of mutations, and commits of up to 100 MiB, as whole messages.",
			Service:  "80,000 mutations in a commit, those of indexes included, and 100 MB.",
			Cases:    []string{"I12/fullest-batch-works", "I12/largest-payloads-work"},
			Handled:  "Not by the proxy, which knows no schema: the adapter's tests count.",
		},
		{
			Emulator: "SQL over a NULL_FILTERED index is refused, or, as it is started here, never checked.",
			Service:  "Takes a query whose conditions exclude NULL.",
			Handled:  "Reads by key (ReadUsingIndex) are the same on both.",
		},
		{
			Emulator: "All rows of an answer come in one message, and without a resume token.",
			Service:  "Sends part by part; a client goes on behind the last token.",
			Cases:    []string{"I5/a-long-journal-reads-whole-in-pages"},
			Handled:  "A stream that breaks is read again from its start, which the client does by itself.",
		},
		{
			Emulator: "REPEATABLE READ is taken, and is as serial as all else; read lock modes, priorities, commit delays and tags change nothing.",
			Service:  "REPEATABLE READ lets write skew through, and locks only what it writes.",
			Cases:    []string{"I3/storm-of-late-writers-ends-at-a-takeover"},
			Handled:  "Not at all: it shows only on the service.",
		},
		{
			Emulator: "There are no commit statistics, no UUID columns (INTERNAL), no IAM.",
			Service:  "Has them.",
			Handled:  "Nothing here may rely on them.",
		},
		{
			Emulator: "Row deletion policies are taken and not carried out within the time of a test.",
			Service:  "Deletes what is due, typically within 72 hours.",
			Handled:  "No lease or record may end by them.",
		},
		{
			Emulator: "One process, one clock, one copy, no splits: stale reads are never behind, hot spots cost nothing, nothing fails over.",
			Service:  "Keys that increase overload one split; leaders move; a read may be as stale as it asks to be.",
			Cases:    []string{"I7/store-clock-never-goes-back"},
			Handled:  "Not at all: it shows only on the service.",
		},
		{
			Emulator: "Holds everything in memory, and forgets it when it ends. An instance has room for 100 databases.",
			Service:  "What was acknowledged is on disk.",
			Cases:    []string{"I8/a-killed-server-keeps-what-it-acknowledged-once"},
			Handled:  "The case is not applicable. NewDatabase makes more instances as it needs them.",
		},
	}
}
