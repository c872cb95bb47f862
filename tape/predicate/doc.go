// Package predicate evaluates CEL expressions over the entries of the feed of all runs: the
// predicate_cel of a subscription and of a reaction.
//
// An expression sees the variables global_seq, seq, ts_ms and schema_version (int), run_id, kind,
// subject and trace_id (string), and payload: the parsed payload of the entry, null if that is not
// JSON. A JSON integer is an int where it fits into 64 bits; every other number is a double. The
// functions and macros are CEL's standard ones. Blank text is true for every entry.
//
// # Faults
//
// An expression selects an entry only if it evaluates to true. Everything else is no match and no
// error: an expression that does not compile, fails, yields another type than bool, or costs
// too much. [Counts] reports how often that happened, by reason. The only errors are those of
// [Cache.Compile], for text that is too long or not UTF-8.
//
// # Cost
//
// Expressions come from clients, so both steps are bounded. A text has at most [MaxText] bytes,
// nests at most 50 levels and has at most 1,000 nodes with its macros expanded. One evaluation costs
// at most [MaxCost] units, which takes up to 0.1 s: a step of a comprehension, a call, 64 bytes of a
// text that a function looks at, a node of two values that are compared. A regular expression has at most
// 1,000 instructions, and is not run on a text that would cost more than the limit. The same entry
// costs the same in every process, so an expression matches the same entries everywhere.
//
// A [Cache] compiles one expression at a time and keeps those used last, up to 64 KiB of
// text. The compiled form takes 5 to 110 KB.
//
// # Sharing
//
// An [Input] parses its payload when the first predicate asks for it, once for all predicates, and
// leaves the result to the garbage collector: entries that are kept for late subscribers do not keep
// their parsed payloads. All types are safe for concurrent use.
package predicate
