// Package emulators and the packages below it start the engines that the adapters are tested on:
// emulators/postgres, emulators/alloydb, emulators/bigtable and emulators/spanner. They need only
// the engine's own package installed: no Docker and no fixed port, and they leave nothing behind.
// They import no adapter; they return addresses. Package emulators/doctor reports what this machine
// has, and package emulators holds what they share.
//
// # Which engine
//
// Each engine can come from several places, its tiers. The first available tier is used:
//
//   - service: the environment names a server (EMULATORS_POSTGRES_URL,
//     BIGTABLE_EMULATOR_HOST, SPANNER_EMULATOR_HOST);
//   - emulator: a stand-in that is part of the engine's package (AlloyDB, Bigtable);
//   - local: programs of this machine, run as private processes;
//   - container: started by a separate module, if that has called RegisterContainer.
//
// EMULATORS, or EMULATORS_POSTGRES, EMULATORS_BIGTABLE or EMULATORS_SPANNER for one engine, forces
// a tier by its name. A forced tier that is not available is an error. If no tier is available the
// error is ErrMissing, on which Require skips or fails the test.
//
// # Lifetime of a server
//
// A private server belongs to the process that started it. Close ends the server, and so does the
// end of that process, SIGKILL included: on Linux the kernel signals the server, on other Unix
// systems a shell that waits for the end of a pipe does. On Windows nothing does, and the server
// stays until the next start. Each start removes the directories of owners that have died, and
// kills what still runs in them.
//
// Data that need not survive the machine is kept in memory if the system has a directory for that
// (/dev/shm) with enough room, else in the temporary directory. TMPDIR chooses another place.
//
// A process that runs as root runs PostgreSQL as the user postgres, or as nobody.
package emulators
