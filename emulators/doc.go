// Package emulators starts the engines that the adapters are tested on: nothing
// to install by hand beyond the engine's own package, no Docker, no fixed port,
// and nothing left behind. It knows no adapter; what it hands out is an address.
//
// # Which engine
//
// Each engine can come from several places, its tiers, and the first that can be
// had is taken:
//
//   - service: the environment names a server (EMULATORS_POSTGRES_URL,
//     BIGTABLE_EMULATOR_HOST, SPANNER_EMULATOR_HOST);
//   - emulator: a stand-in that is part of this package (AlloyDB, Bigtable);
//   - local: programs of this machine, run as private processes;
//   - container: where a module of its own has registered how to start one, see
//     RegisterContainer.
//
// EMULATORS, or EMULATORS_POSTGRES, EMULATORS_BIGTABLE or EMULATORS_SPANNER for one
// engine, forces a tier by its name. A forced tier that cannot be had is an error; an
// engine that is found nowhere is ErrMissing, for Require to skip or fail on. Doctor
// tells what this machine has.
//
// # Life of what is started
//
// A private server belongs to the process that started it. Close ends it; so does
// the end of that process, SIGKILL included: on Linux the kernel sends the server
// the signal, on other Unix systems a shell that waits for the end of a pipe does.
// On Windows nothing does, and the server stays until the next start. Directories
// whose owner died are swept at the next start, with whatever still runs in them.
//
// Data that need not survive the machine is kept in memory where the system has a
// directory for that (/dev/shm) with room to spare, else in the temporary directory;
// TMPDIR chooses another place.
//
// A process started as root runs PostgreSQL as the user postgres, or as nobody.
package emulators
