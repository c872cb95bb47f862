package tape

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// The rules of deliveries (package delivery) that a claim of an effect or an obligation and a claim of
// tasks follow. The protocol lets any caller report on an effect or an obligation, and counts failed
// attempts; of tasks it counts claims. What it lets a failure do depends on the row, so the number
// of attempts is added where a failure is reported.
var (
	openRules = delivery.Rules{Open: true}
	taskRules = delivery.Rules{CountClaims: true}
)

// defaultClaimTTL is how long a claim lasts if its request names no time.
const defaultClaimTTL = time.Minute

// claimTTL returns the TTL of a claim; name is the request field that an error reports.
func claimTTL(name string, ttl time.Duration) (time.Duration, error) {
	if ttl <= 0 {
		return defaultClaimTTL, nil
	}
	if ttl < delivery.MinTTL || ttl > delivery.MaxTTL {
		return 0, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: name,
			Problem: fmt.Sprintf("%v is out of range, the limits are %d and %d ms (0 or less means %d)",
				ttl, delivery.MinTTL.Milliseconds(), delivery.MaxTTL.Milliseconds(), defaultClaimTTL.Milliseconds()),
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

// claim decides on a claim of a row that was last changed at updated. It reads the store clock only
// if the row was not available then: a row that was due when it was written is still due.
func (t *Tape) claim(ctx context.Context, s delivery.State, updated time.Time, claimer string, ttl time.Duration) (delivery.State, delivery.Result, error) {
	next, result := openRules.Claim(s, updated, claimer, runstore.After(ttl))
	if result != delivery.NotDue {
		return next, result, nil
	}
	now, err := t.store.Now(ctx)
	if err == nil {
		next, result = openRules.Claim(s, now, claimer, runstore.After(ttl))
	}
	return next, result, err
}

// generation returns the receipt of a claim of a generation; 0 or less for a report without one.
func generation(n int64) delivery.Receipt { return delivery.Receipt{Claim: max(n, 0)} }
