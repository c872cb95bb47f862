package emulators

import (
	"context"
	"errors"
	"testing"
)

func TestRegisterContainer(t *testing.T) {
	const engine = "an engine of this test"
	if ContainerStarter(engine) != nil {
		t.Error("an engine that nobody registered has a container")
	}
	own := errors.New("the function of this test")
	start := func(context.Context) (ContainerServer, error) { return nil, own }
	RegisterContainer(engine, start)
	t.Cleanup(func() { delete(containers.start, engine) })
	if _, err := ContainerStarter(engine)(t.Context()); !errors.Is(err, own) {
		t.Errorf("got %v, want the function that was registered", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second container for an engine was taken")
		}
	}()
	RegisterContainer(engine, start)
}
