// Package spanner starts Spanner's emulator behind a proxy, which makes up for some of what it
// lacks and applies faults. Package emulators says where an emulator comes from and how long it
// lives.
package spanner
