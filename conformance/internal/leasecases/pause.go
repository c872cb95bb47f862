package leasecases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// pauseBetweenWrites stops a process while it holds no lock of the engine. With SQLite's write lock it
// would keep every other process from a takeover.
func pauseBetweenWrites(t harness.T, e *harness.Env, p *os.Process) error {
	t.Helper()
	for i := range 100 {
		// The first tries are short, because a process that holds the lock keeps it. Later ones leave a slow
		// machine more time for the write.
		if err := kit.PauseProcess(p); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
		_, err := e.Store.CreateRun(ctx, runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("probe ", i)), Unlisted: true})
		cancel()
		if err == nil {
			return nil
		}
		if err := kit.ResumeProcess(p); err != nil {
			return err
		}
	}
	return errors.New("the process holds a lock whenever it is stopped")
}
