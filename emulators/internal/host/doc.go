// Package host is what the packages of the engines share: it finds programs on this machine, runs
// them as processes that end with this process, and keeps their directories.
package host
