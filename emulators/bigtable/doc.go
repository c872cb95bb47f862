// Package bigtable starts Bigtable's emulator behind a gate, which refuses what the service would
// refuse and applies faults. Package emulators says where an emulator comes from and how long it
// lives.
package bigtable
