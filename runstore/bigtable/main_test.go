package bigtable_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

// shared is the emulator of the tests of this package, started at first use.
var shared struct {
	once   sync.Once
	server *bigtableemulator.Server
	err    error
}

func TestMain(m *testing.M) {
	conformance.RunChild() // before an emulator is started that the child does not need
	flag.Parse()
	// The cases wait more than they compute: for leases to end, for lost replies.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	// 200 %: the emulator, in this process, makes much garbage and keeps little.
	debug.SetGCPercent(200)
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// server returns the emulator that the tests of this package share.
func server(t testing.TB) *bigtableemulator.Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = bigtableemulator.Start(context.Background(), nil) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}
