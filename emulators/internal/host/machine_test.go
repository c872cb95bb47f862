package host

import (
	"context"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/emulators"
)

const registered = "an engine of the tests of host"

var register = sync.OnceFunc(func() { // an engine can be registered once in a process
	emulators.RegisterContainer(registered, func(context.Context) (emulators.ContainerServer, error) { return nil, nil })
})

func TestThisMachineStartsContainers(t *testing.T) {
	register()
	m := This(nil)
	if f := m.ContainerFinding(registered); !f.Found {
		t.Errorf("an engine with a container: %v", f)
	}
	if f := m.ContainerFinding("another"); f.Found {
		t.Errorf("an engine without a container: %v", f)
	}
}
