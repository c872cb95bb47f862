// Package tapeconfig reads tape.yaml: the leases of each reactor and the settings of tapestore serve.
//
//	tape:
//	  reactors:
//	    recovery:
//	      lease_ttl_s: 30
//	      max_in_flight: 16
//	serve:
//	  store: sqlite:./tape.db
//
// [Load] reads the file, [Config.Reactor] returns what it says of a reactor, and the methods of
// [Reactor] return the options for packages lease, lease/takeover and lease/election. A key that the
// file leaves out has its default, and so has a reactor that it leaves out. The file example.yaml of
// this package names and explains every key.
//
// # What it guarantees
//
//   - All faults are reported at once, as an [Error]: each with the file, the line, the key and the
//     limit. Only a fault of the YAML syntax hides the others.
//   - A key that has no meaning is refused, and so is a key given twice. Aliases, merge keys and
//     further documents are refused, too.
//   - Options of a file that was read without an error are accepted by lease.New, takeover.New and
//     election.New. Their own checks are used.
//   - No error contains the value of serve.store, or a text in an unexpected place that might be a
//     piece of it.
//
// # What it does not guarantee
//
// Reactors are named by the programs that use them, so a misspelled reactor is a reactor that no
// program uses. [Config.Reactors] lists those of the file. The values of the section serve are
// checked for their form only; tapestore serve and tapestore config check do the rest. The file is
// read once: a change takes effect when the program starts again.
package tapeconfig
