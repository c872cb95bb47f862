// Package leasecases holds the cases of the lease runtime, packages lease, lease/takeover,
// lease/election and lease/group, on any store: drivers are processes that the cases kill and stop, and networks
// that the cases take away.
package leasecases
