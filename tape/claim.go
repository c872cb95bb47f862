package tape

import (
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The TTLs of a claim.
const (
	defaultClaimTTL = time.Minute
	minClaimTTL     = time.Millisecond // the unit of time on the wire
	// maxClaimTTL allows for a compensator that a person has to confirm within a day.
	maxClaimTTL = 24 * time.Hour
)

// claimTTL returns the TTL of a claim; name is the request field that an error reports.
func claimTTL(name string, ttl time.Duration) (time.Duration, error) {
	if ttl <= 0 {
		return defaultClaimTTL, nil
	}
	if ttl < minClaimTTL || ttl > maxClaimTTL {
		return 0, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: name,
			Problem: fmt.Sprintf("%v is out of range, the limits are %d and %d ms (0 or less means %d)",
				ttl, minClaimTTL.Milliseconds(), maxClaimTTL.Milliseconds(), defaultClaimTTL.Milliseconds()),
		}
	}
	return ttl, nil
}

// ClaimRequest asks for the right to do a piece of work that is open to all callers: to dispatch an
// effect or to work on an obligation.
type ClaimRequest struct {
	Claimer string
	// TTL is how long the claim lasts on the store clock. 0 or less means one minute.
	TTL   time.Duration
	Fence runstore.Fence
}

// check validates the request and returns the claim's TTL.
func (req ClaimRequest) check() (time.Duration, error) {
	if err := checkText(field{"claimer", req.Claimer}); err != nil {
		return 0, err
	}
	if err := checkLength("claimer", req.Claimer, MaxClaimer); err != nil {
		return 0, err
	}
	return claimTTL("lease_ttl_ms", req.TTL)
}
