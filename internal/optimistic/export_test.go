package optimistic

// Len returns the number of keys that are in use.
func (t *Turns[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.turns)
}
