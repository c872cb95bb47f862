package tapeserver

import (
	"strconv"
	"testing"
)

// TestClaimsOfAConnectionAreBounded checks that a connection stores its latest claims, up to maxClaims.
func TestClaimsOfAConnectionAreBounded(t *testing.T) {
	t.Parallel()
	var c claims
	work := func(i int) workID { return effectWork("run", strconv.Itoa(i)) }
	for i := range maxClaims {
		c.put(work(i), 1)
	}
	c.put(work(0), 2) // claimed again: work 1 is the oldest now
	c.put(work(maxClaims), 1)
	if c.get(work(0)) != 2 || c.get(work(1)) != 0 || c.get(work(2)) != 1 || c.get(work(maxClaims)) != 1 {
		t.Errorf("generations %d, %d, %d, %d; want 2, 0, 1, 1", c.get(work(0)), c.get(work(1)), c.get(work(2)), c.get(work(maxClaims)))
	}
	c.put(work(2), 0)
	if len(c.order) != maxClaims-1 || len(c.generations) != maxClaims-1 || c.get(work(2)) != 0 {
		t.Errorf("%d claims in order, %d generations; want %d", len(c.order), len(c.generations), maxClaims-1)
	}
}
