package predicate

import (
	"container/list"
	"sync"
)

// cacheBytes is 64 KiB: the text of the predicates that a Cache keeps. Compiled they take up to
// about 25 MB.
const cacheBytes = 64 << 10

// Cache compiles predicates and keeps those used last. The zero Cache is ready for use.
type Cache struct {
	compiling sync.Mutex // held while a text is compiled, so that hostile texts take one core

	mu     sync.Mutex
	byText map[string]*list.Element
	recent list.List // of *Predicate; the front was used last
	bytes  int       // of the texts

	faults counters
}

// Compile returns the predicate of a text. A text that is no expression yields a predicate that
// selects nothing; its Err says why.
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
	if p := c.find(text); p != nil { // compiled meanwhile
		return p, nil
	}
	p := compile(text)
	p.total = &c.faults
	c.keep(p)
	return p, nil
}

// Counts returns how often the predicates of the cache had a fault, including those that it does not
// keep any more.
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

// weight is at least 64, so that short texts are bounded, too.
func weight(p *Predicate) int { return max(len(p.text), 64) }
