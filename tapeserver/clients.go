package tapeserver

import (
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/tapestore/tapestore/internal/clientlimit"
)

// clients bounds what one client takes of the limits that all clients share, on any number of connections,
// so that a client that holds calls open leaves some for the others.
type clients struct {
	limits Limits

	mu  sync.Mutex
	all map[string]*client // those with open calls
}

// client is the share of one client.
type client struct {
	clients *clients
	name    string
	bytes   *semaphore.Weighted // of BytesInFlight
	streams int                 // guarded by clients.mu
}

func newClients(limits Limits) *clients {
	return &clients{limits: limits, all: map[string]*client{}}
}

// enter counts a call of the client until leave. It returns nil if the client has its share of Streams.
func (cs *clients) enter(name string) *client {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[name]
	if c == nil {
		c = &client{clients: cs, name: name, bytes: semaphore.NewWeighted(clientlimit.Share(cs.limits.BytesInFlight))}
		cs.all[name] = c
	}
	if c.streams >= clientlimit.Share(cs.limits.Streams) {
		return nil
	}
	c.streams++
	return c
}

// leave ends a call. Its holds were released before.
func (c *client) leave() {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if c.streams--; c.streams == 0 {
		delete(c.clients.all, c.name)
	}
}
