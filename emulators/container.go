package emulators

import (
	"context"
	"fmt"
	"sync"
)

// ContainerServer is an engine that runs in a container.
type ContainerServer interface {
	// URL is the engine's address, in the form that the engine's service variable
	// takes.
	URL() string
	// Image is what the container was made from, for people.
	Image() string
	// Close ends the container and removes it.
	Close() error
}

// containers holds how to start an engine in a container, by engine.
var containers struct {
	sync.Mutex
	start map[string]func(ctx context.Context) (ContainerServer, error)
}

// RegisterContainer tells how to start an engine in a container. The code that
// can, and the library that it needs, live in a module of their own, which
// registers itself when it is imported; so users of this one never carry it.
// Registering an engine twice panics: one of the two would silently not be used.
func RegisterContainer(engine string, start func(ctx context.Context) (ContainerServer, error)) {
	containers.Lock()
	defer containers.Unlock()
	if containers.start[engine] != nil {
		panic(fmt.Sprintf("emulators: a container for %s is registered already", engine))
	}
	if containers.start == nil {
		containers.start = map[string]func(ctx context.Context) (ContainerServer, error){}
	}
	containers.start[engine] = start
}

// useContainers is what to do with a program that cannot start an engine's
// containers.
func useContainers(engine string) string {
	return fmt.Sprintf("use a program that imports github.com/tapestore/tapestore/containers, which calls RegisterContainer(%q, …); "+
		"in a checkout: EMULATORS=container go -C containers run ./cmd/tapestore …", engine)
}

// containerStarter returns what RegisterContainer was given for an engine, or nil.
func containerStarter(engine string) func(ctx context.Context) (ContainerServer, error) {
	containers.Lock()
	defer containers.Unlock()
	return containers.start[engine]
}
