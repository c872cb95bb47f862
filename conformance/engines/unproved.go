package engines

import "github.com/tapestore/tapestore/emulators"

// unproved says, by engine, what the suite cannot prove on an engine that was started for it.
var unproved = map[string]string{
	"sqlite": "Processes are killed, machines are not. That a commit survives the loss of power is the disk's and the file system's " +
		"word, and file systems over a network (NFS, SMB) are not supported by SQLite's write-ahead log.",
	"postgres": "The private server keeps its data without waiting for the disk, so a killed server is proved and the loss of power is not. " +
		"There is one server: what a failover to a standby loses, when replication is asynchronous, and how long it takes show only on " +
		"your own. Nor is there a login, TLS, a pooler such as PgBouncer, or your settings, roles and extensions: run " +
		"`tapestore conformance --store postgres://…` against a server like your own for these. Its speed says nothing about yours.",
	"alloydb": "The connector is the real one; what it connects to is a stand-in before plain PostgreSQL. AlloyDB's own storage, planner, " +
		"columnar engine, parameters and limits were not there. Any token logs in as any role: IAM policies, principals and " +
		"certificate rules are the service's. The read pool is the primary under another name, so nothing was stale. Failover, " +
		"maintenance, the network paths (private, public, PSC), managed connection pooling and quotas need a cluster, and so does speed.",
	"bigtable": "The client is the real one; what it connects to is Google's emulator, one process that holds everything in memory, and a " +
		"gate that refuses what the service is documented to refuse (tapestore emulators doctor lists what differs). Replication was not " +
		"there, nor app profiles and their routing: what a failover to another cluster loses, and that conditional mutations are refused " +
		"under a wrong profile. Nor were tablets: how requests queue on one row, what a hot tablet costs, and what clocks do when a tablet " +
		"moves to another server. Limits of size and number are those of the documentation, not enforced by the service itself; garbage is " +
		"collected at other times; nobody was refused by IAM, and there was no TLS. Its speed says nothing about the service's. Run " +
		"`tapestore conformance --store bigtable://project/instance/table` on an instance like your own for these.",
	"spanner": "The client is the real one; what it connects to is Google's emulator, one process that holds everything in memory and lets one " +
		"read-write transaction at a time into a database, behind a proxy that gives each transaction a session (tapestore emulators doctor " +
		"lists what differs). So no contention was there: how transactions wait for each other's locks, which of them is wounded, and that " +
		"transactions of different runs do not meet. Nor were splits and what a hot one costs, TrueTime and its commit wait, replicas and " +
		"what a region that fails takes with it, query plans, the limits of a commit, IAM, and TLS. Its speed says nothing about the " +
		"service's. Run `tapestore conformance --store spanner://project/instance/database` on an instance like your own for these.",
}

// Unproved returns what a run of the suite cannot prove on an engine of this tier, or "". It is ""
// for a user's own server, because it depends on that server.
func Unproved(engine, tier string) string {
	if tier == emulators.TierService {
		return ""
	}
	return unproved[engine]
}

// emulated returns the tier of a run on an emulator. An emulator is never the service, whether it
// runs in this process, as a program on this machine, or at an address.
func emulated(tier string) string {
	if tier == emulators.TierContainer {
		return tier
	}
	return emulators.TierEmulator
}
