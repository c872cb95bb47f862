// Package inspector is a web page that shows what a store holds: its runs, the journal, records and
// lease of a run, its queues, the end of its feed, and the members and shards of a group.
//
// [New] returns an http.Handler with one page, whose files are embedded, and the JSON API that the page
// reads. It works on any runstore.RunStore and writes nothing, except for a lease that an operator
// breaks (lease.Break), where [Options.Authorize] permits that.
//
// # Bounds
//
// No request reads a whole store, a whole journal or all records of a run. A request returns at most
// 200 rows, looks at a bounded number of runs, events or records, and ends within [Options.Timeout],
// after the wait of at most 30 s that a request for a change may ask for. A list that is not finished has a cursor, and says how much was looked at. Of a value the page shows
// the first bytes; one request returns the whole of it.
//
// # Security
//
// Everything that comes from a store is untrusted. The page builds its elements from text and never
// from markup, and its Content-Security-Policy permits neither inline scripts nor requests to other
// hosts. Text that a terminal or a reader could mistake (control characters, invisible characters,
// changes of the writing direction) is shown escaped.
//
// A request is refused unless its Host is one that [Options.AllowHost] accepts, which prevents DNS
// rebinding, and unless it comes from the page itself or from a program that is no browser. To break a
// lease a request also needs a header that no form can send, the type application/json, the token that
// its sender has read, a name and a reason.
//
// The files of the page need no authorisation, so that the page can ask for a token. They contain
// nothing of the store.
package inspector
