// Package optimistic has what operations under optimistic concurrency control share. Such an
// operation reads records, decides, and commits under the condition that their versions are
// unchanged: [Repeat] resolves lost replies, [Rest] is the pause after a lost race, and [Turns] lets
// operations of one process take turns.
package optimistic
