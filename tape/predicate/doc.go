// Package predicate evaluates CEL expressions over the entries of the feed of all runs: the
// predicate_cel of a subscription and of a reaction.
//
// An expression has the variables global_seq, seq, ts_ms and schema_version (int), run_id, kind,
// subject and trace_id (string), and payload: the parsed payload of the entry, null if the payload
// is not JSON. A JSON integer is an int if it fits into 64 bits; every other number is a double.
// The functions and macros are CEL's standard ones. A comprehension visits the keys of an object of
// the payload in sorted order, and those of a map in the text in their order there. Blank text is true
// for every entry.
//
// # Faults
//
// An expression selects an entry only if it evaluates to true. An expression that does not compile,
// fails, yields another type than bool, or costs too much selects nothing; this is not an error.
// [Counts] reports the number of such faults, by reason. The only errors are those of
// [Cache.Compile], for text that is too long or not UTF-8.
//
// # Cost
//
// Expressions come from clients, so compilation and evaluation are bounded. A text has at most
// [MaxText] bytes, nests at most 50 levels and has at most 1,000 nodes with its macros expanded.
// One evaluation costs at most [MaxCost] units, which takes up to 0.1 s. One unit is a step of a
// comprehension, a call, 64 bytes of a text that a function processes, or a node of two values that
// are compared. A regular expression has at most 1,000 instructions, and is not run on a text that
// would cost more than the limit. The same entry costs the same in every process, so an expression
// matches the same entries everywhere.
//
// A [Cache] compiles one expression at a time and keeps the most recently used ones, up to 64 KiB
// of text. The compiled form of one takes 5 to 110 KB.
//
// # Sharing
//
// An [Input] parses its payload when the first predicate asks for it, once for all predicates. It
// keeps only a weak reference to the result, so entries that are kept for late subscribers do not
// keep their parsed payloads. All types are safe for concurrent use.
package predicate
