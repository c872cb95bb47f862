// Package archive exports the runs of a store, imports them into another one, of any engine, and
// compares stores. It uses the interface runstore.RunStore and the capability runstore.Mover, so every
// pair of engines works.
//
// # The format
//
// An archive is text: one JSON object a line. A line is a header, a run, a record, an event, the end of
// a run, a discard or a close:
//
//	{"header":{"format":1,"archive":"…","part":1,"epoch":2,…},"sum":"…"}
//	{"run":{"id":"…","status":1,"created":…,"last_seq":2,"token":7,…},"sum":"…"}
//	{"record":{"key":"run","version":3,…,"value":"…"},"sum":"…"}
//	{"event":{"seq":1,"kind":"…","time":…,"token":7,"owner":"…","data":"…"},"sum":"…"}
//	{"end":{"id":"…","records":1,"events":2,"digest":"…"},"sum":"…"}
//	{"close":{"runs":1,…,"last":true},"sum":"…"}
//
// Times are microseconds since 1970. Text that is not valid UTF-8 is {"b64":"…"}. The sum of a line is
// half of the SHA-256 of the sum of the line before and of the line up to the sum: a chain, so that a
// line that was changed, lost, added or moved is found where it stands. The digest of a run is the
// SHA-256 of its lines, independent of their place. The sums have no key: they find accidents, and a
// person who can write the archive can compute them.
//
// A discard voids the lines of the present run. An export writes it when a run with many records was
// changed while they were read.
//
// # Guarantees of an export
//
//   - Each run is of one state: its head, all its records and its journal are what one reader could
//     have seen at one instant. Different runs are of different instants.
//   - Every run that exists from the start to the end of the export is in the archive, listed or not.
//   - It takes no lease and writes nothing to the store.
//   - Memory is bounded by a few pages of a read, however large a run is.
//
// A run that is written all the time fails the export after some attempts. Stop its driver.
//
// # Guarantees of an import
//
//   - The target's epoch is above that of the archive, so that every token of the target is above
//     every token of the source, those of purged runs included (runstore.Token). No fence of the
//     source is valid in the target.
//   - The importer holds the lease of the run that it imports, and every write is under its fence: of
//     two imports of one run at once, one is fenced. Until its last step the run has the status
//     [StatusImporting], no summary, no runnable time and no index entries. The last step is atomic.
//   - The last step holds the records that have index entries, up to 256 and 8 MiB, the limits of a
//     batch. Of a run with more, the first ones are written before it, and their entries can be seen
//     before the end of the run's import. So no worker may run on the target during an import: it
//     would take a due timer, an effect or a task of a run that is not complete, and what it wrote
//     would be lost when the import is repeated.
//   - A run that exists in the target is never changed. If it equals the archived run, it is counted as
//     present; otherwise it is a conflict, and the import fails after the other runs.
//   - An import that was killed is repeated: the runs that it has finished are present, and one that it
//     has not is purged and imported again.
//
// Seqs, times, tokens, owners, versions, stamps and index entries are those of the source, and so are
// the status, the creation time and the runnable time. The run's own token is higher. What an archive
// does not have: leases, reservations of room (runstore.RecordWrite), ids of batches and of commits over
// several runs, positions in the feed, purged runs. Records of Tape and of package lease have ids of
// grants as values, with which a reader of the archive can write to the source as the holder of a lease:
// protect an archive as you protect the store.
package archive
