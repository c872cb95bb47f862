// Command mutants measures the conformance suite by mutation testing: it puts one bug at a time
// into the real adapters and reports the bugs that no case notices.
//
//	go run ./conformance/mutants                      # or make mutants: every mutation
//	go run ./conformance/mutants -engine spanner      # those of one list
//	go run ./conformance/mutants -run 'owner|epoch'   # those whose engine/name matches
//	go run ./conformance/mutants -list                # names only
//
// A mutation replaces a few lines of one file and names the cases that must fail as a result. The
// command passes the changed file to go test -overlay, so no source file is modified and several
// mutations can be tested at once. Before it tests any mutation of a package, all named cases of
// that package must pass without one.
//
// # The lists
//
// The folder list has one file per engine. memory.txt also holds the mutations of runstore/adapter/rules
// and of the packages above the stores; alloydb.txt also holds some of runstore/postgres, which
// AlloyDB shares. An entry is a block of fields and a hunk, as in a patch without line numbers:
//
//	name: fence-checks-the-owner-only
//	guarantee: I3
//	why: a holder preempted by a process of the same name goes on writing.
//	file: runstore/adapter/rules/rules.go
//	kill: I3/old-fence-of-the-same-owner-is-refused
//	-	if h.State != Current || h.Token != f.Token() {
//	+	if h.State != Current {
//
// The hunk's lines that begin with "-" are replaced by those that begin with "+"; lines that begin
// with a blank are context. The "-" and context lines together must occur exactly once in the file,
// as whole lines, ignoring indentation. Otherwise the list is out of date, and the command fails
// before it runs anything.
//
// A kill field names one test: a case of the suite (I3/name), which runs as a subtest of
// TestConformance, or a test of the package (TestName, TestName/subtest). Repeat the field to name
// more tests; one failing test is enough. The tests belong to the list's adapter package
// (runstore/memory for memory.txt) unless the field package names another.
//
// Entries are separated by blank lines. Lines between entries that begin with "#" are comments.
//
// # Adding a mutation
//
// Every bug found in an adapter gets an entry that puts the bug back. Write the entry, run it with
// -run, and read the case's message: a case that fails for another reason proves nothing. If every
// case passes, the suite has a hole and needs a new case first.
//
// # Verdicts
//
// A mutation is killed when one of its cases fails, ends the process, or is still running at the
// time limit: -timeout, or three times what the cases took without the mutation if that is longer.
// It survives when all of them pass. It is broken (neither killed
// nor survived) when it does not compile, when no store can be opened, when a case is skipped
// because the engine is missing, or when something else fails. The exit status is 1 if any mutation
// survived, and 2 if any was broken or a list is out of date.
package main
