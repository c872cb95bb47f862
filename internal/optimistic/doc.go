// Package optimistic has what operations under optimistic concurrency control share. Such an
// operation reads records, decides, and commits under the condition that their versions are
// unchanged: [Repeat] resolves lost replies, [Rest] is the pause after a lost race, and [Claims]
// claims the due entries of a queue that several callers share.
package optimistic
