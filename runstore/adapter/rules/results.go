package rules

import "github.com/tapestore/tapestore/runstore"

// A store remembers the results of a run's last requests with writes, so that a repeat returns the
// result and is not applied again (I8). Ids of batches and renewals, of grants and of releases are
// chosen independently and may be equal, so a letter before the id separates the three namespaces.
// Stores keep these names.

// BatchResult names the result of a batch or a renewal.
func BatchResult(id runstore.BatchID) string { return resultName('b', string(id)) }

// GrantResult names the result of the creation or the acquire request that made a grant.
func GrantResult(id runstore.GrantID) string { return resultName('a', string(id)) }

// ReleaseResult names the result of the release of a grant.
func ReleaseResult(id runstore.GrantID) string { return resultName('r', string(id)) }

// resultName returns "" where there is no id: such a request is never a repeat.
func resultName(kind byte, id string) string {
	if id == "" {
		return ""
	}
	return string(kind) + id
}

// FormerLease returns the lease that a remembered acquire request was granted, for a repeat whose
// grant has ended.
func FormerLease(run runstore.RunID, spec runstore.LeaseSpec, token runstore.Token, done runstore.Committed) runstore.Lease {
	return runstore.Lease{
		Run: run, Owner: spec.Owner, Reactor: spec.Reactor, Token: token, Grant: spec.Grant, TTL: spec.TTL,
		ExpiresAt: done.Time.Add(spec.TTL).Truncate(runstore.TimePrecision), Strict: spec.Strict,
	}
}
