package predicate

import (
	"container/list"
	"sync"
)

// cacheBytes is 64 KiB: the total text of the predicates that a Cache keeps. Compiled they take up
// to about 25 MB.
const cacheBytes = 64 << 10

// Cache compiles predicates and keeps the most recently used ones. The zero Cache is ready for use.
type Cache struct {
	compiling sync.Mutex // held while a text is compiled, so that hostile texts use at most one core

	mu     sync.Mutex
	byText map[string]*list.Element
	recent list.List // of *Predicate, most recently used first
	bytes  int       // total weight of the texts

	faults counters
}

// Compile returns the predicate of a text. A text that does not compile yields a predicate that
// selects nothing; its Err returns the reason.
//
// Errors: runstore.ErrTooLarge above [MaxText] bytes, runstore.ErrInvalid for text that is not
// UTF-8; both name the field predicate_cel.
func (c *Cache) Compile(text string) (*Predicate, error) {
	if err := check(text); err != nil {
		return nil, err
	}
	if p := c.find(text); p != nil {
		return p, nil
	}
	c.compiling.Lock()
	defer c.compiling.Unlock()
	if p := c.find(text); p != nil { // another caller has compiled it meanwhile
		return p, nil
	}
	p := compile(text)
	p.total = &c.faults
	c.keep(p)
	return p, nil
}

// Counts returns the number of faults of the cache's predicates, including evicted ones.
func (c *Cache) Counts() Counts { return c.faults.counts() }

func (c *Cache) find(text string) *Predicate {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byText[text]
	if e == nil {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*Predicate)
}

func (c *Cache) keep(p *Predicate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byText == nil {
		c.byText = map[string]*list.Element{}
	}
	c.byText[p.text] = c.recent.PushFront(p)
	c.bytes += weight(p)
	for c.bytes > cacheBytes {
		last := c.recent.Back()
		c.recent.Remove(last)
		gone := last.Value.(*Predicate)
		delete(c.byText, gone.text)
		c.bytes -= weight(gone)
	}
}

// weight returns the size of a predicate's text, at least 64, so that the number of short texts is
// bounded too.
func weight(p *Predicate) int { return max(len(p.text), 64) }
