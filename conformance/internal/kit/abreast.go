package kit

import (
	"sync"
)

// abreastLead is how many commits a writer may be ahead of the slowest: 16. While one commit of four
// writers is in flight, the others make at most 3*2*16 = 96 commits and so stay below the 128 batches
// (runstore.RememberedBatches) for which a store must recognize a commit that it sends again.
const abreastLead = 16

// Abreast is a barrier that keeps concurrent writers of a run close together, so that a store whose
// network fails can still resolve the commit of the slowest.
type Abreast struct {
	mu      sync.Mutex
	changed sync.Cond
	commits []int // by writer; the count of a writer that has left is irrelevant
	left    []bool
	ended   bool
}

// NewAbreast returns a barrier for writers 0 to n-1.
func NewAbreast(n int) *Abreast {
	a := &Abreast{commits: make([]int, n), left: make([]bool, n)}
	a.changed.L = &a.mu
	return a
}

// Next counts a commit of writer i and waits until no writer is abreastLead commits behind it, or
// until End.
func (a *Abreast) Next(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.commits[i]++
	a.changed.Broadcast()
	for !a.ended && a.ahead(i) {
		a.changed.Wait()
	}
}

// ahead reports whether writer i has to wait for another. The caller holds the lock.
func (a *Abreast) ahead(i int) bool {
	for other, n := range a.commits {
		if !a.left[other] && a.commits[i]-n >= abreastLead {
			return true
		}
	}
	return false
}

// Leave removes writer i, for which no other waits any more.
func (a *Abreast) Leave(i int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left[i] = true
	a.changed.Broadcast()
}

// End ends all waits, of now and later.
func (a *Abreast) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.changed.Broadcast()
}
