package spanner_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
)

func TestMain(m *testing.M) {
	conformance.RunChild() // before an emulator is started that the child does not need
	flag.Parse()
	// The cases wait for the emulator, and for the client's pauses between repeats, more
	// than they compute.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	probability := fair
	s, err := spanneremulator.Start(context.Background(), &spanneremulator.Options{AbortProbability: &probability})
	emulators.SkipExamples(err)
	if err == nil {
		started[fair] = s
	}
	code := m.Run()
	for _, s := range started {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// The package's emulators are shared: each test has a database.
var (
	starting sync.Mutex
	started  = map[int]*spanneremulator.Server{}
)

// server returns the emulator with an abort probability.
func server(t testing.TB, aborts int) *spanneremulator.Server {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	if s := started[aborts]; s != nil {
		return s
	}
	s, err := spanneremulator.Start(context.Background(), &spanneremulator.Options{AbortProbability: &aborts})
	emulators.Require(t, err)
	started[aborts] = s
	return s
}

const (
	fair   = 20  // the emulator's default
	newest = 100 // whoever comes last wins
)
