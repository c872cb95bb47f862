package rules

import "github.com/tapestore/tapestore/runstore"

// FirstResult is what a store remembers of the request with writes that made or released a grant.
type FirstResult struct {
	runstore.Committed
	// Token is that of the grant that was made or released.
	Token runstore.Token
	// Former is how the grant before the one that was made has ended.
	Former runstore.GrantEnd
}

// RepeatedGrant returns the result of the repeat of a request that made a grant, and ok true, if
// the grant is current or the store remembers the result of the request, first. The repeat of a
// request without writes has no such result: first is nil.
func (h Head) RepeatedGrant(spec runstore.LeaseSpec, first *FirstResult) (granted runstore.Granted, ok bool) {
	current := h.State == Current && h.Grant == spec.Grant
	switch {
	case first != nil:
		granted.Committed, granted.Former = first.Committed, first.Former
		granted.Committed.Replayed = true
		granted.Lease = FormerLease(h.ID, spec, first.Token, first.Committed)
	case current:
		granted.Committed = runstore.Committed{LastSeq: h.LastSeq, Time: h.Holder.GrantedAt, Replayed: true}
		granted.Former = h.Holder.Former
	default:
		return granted, false
	}
	if granted.Ended = !current; current {
		granted.Lease = h.Lease(spec.TTL)
	}
	return granted, true
}
