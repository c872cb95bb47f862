package emulators

import (
	"context"
	"fmt"
	"sync"
)

// ContainerServer is an engine that runs in a container.
type ContainerServer interface {
	// URL returns the engine's address in the form of the engine's service variable.
	URL() string
	// Image returns the name of the container's image, for display.
	Image() string
	// Close ends the container and removes it.
	Close() error
}

// containers holds the function that starts an engine in a container, by engine.
var containers struct {
	sync.Mutex
	start map[string]func(ctx context.Context) (ContainerServer, error)
}

// RegisterContainer registers the function that starts an engine in a container. That function and
// the library that it needs live in a separate module, which registers itself when it is imported;
// so users of this module do not depend on the library. Registering an engine twice panics, because
// one of the two functions would silently not be used.
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

// ContainerStarter returns the function that RegisterContainer was given for an engine, or nil.
func ContainerStarter(engine string) func(ctx context.Context) (ContainerServer, error) {
	containers.Lock()
	defer containers.Unlock()
	return containers.start[engine]
}
