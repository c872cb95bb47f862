package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// dying is a handle of a process that dies at a request of the test's choice: from then on
// the server refuses what the process sends, also what arrives late. So a test knows
// whether a write was applied, which a handle that merely gives up after a while does not
// show: its last request may still be on its way.
type dying struct {
	*bigtable.Store
	name string
}

// handleName is the metadata that names a dying handle.
const handleName = "tapestore-test-handle"

var dyingHandles atomic.Int64

// openDying opens a handle as openBare does, one that can die.
func openDying(t testing.TB, table bigtableemulator.TableName) dying {
	t.Helper()
	d := dying{name: fmt.Sprint(dyingHandles.Add(1))}
	named := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, handleName, d.name)
	}
	d.Store = openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return invoke(named(ctx), method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				return begin(named(ctx), desc, cc, method, opts...)
			}))
	})
	return d
}

// only matches those of the RPCs that this handle sends.
func (d dying) only(matches func(bigtableemulator.Call) bool) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		names := c.Metadata.Get(handleName)
		return len(names) == 1 && names[0] == d.name && matches(c)
	}
}

// dieAt runs do until the server refuses an RPC of this handle that matches, and returns
// the error of do. All later RPCs that match are refused too, until the test ends.
func (d dying) dieAt(t testing.TB, matches func(bigtableemulator.Call) bool, do func(ctx context.Context) error) error {
	t.Helper()
	died := server(t).Refuse(0, d.only(matches))
	t.Cleanup(died.Stop)
	return cutAt(t, died, do)
}

// cutAt runs do with a context that ends once a fault was done to an RPC, and returns the
// error of do.
func cutAt(t testing.TB, fault emulators.Fault, do func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if fault.Await(ctx, 1) == nil {
			cancel()
		}
	}()
	err := do(ctx)
	if fault.Count() == 0 {
		t.Fatalf("got %v, and no RPC of those that were to fail was sent", err)
	}
	return err
}

// dyingWrite has a process write what a commit needs before it, and die before that.
func dyingWrite(t testing.TB, table bigtableemulator.TableName, b runstore.Batch) {
	t.Helper()
	d := openDying(t, table)
	err := d.dieAt(t, served(table, swaps), func(ctx context.Context) error {
		_, err := d.Commit(ctx, b)
		return err
	})
	if !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want ErrUnknownOutcome", err)
	}
}

// dyingCreation has a process write what a creation needs before it, and die before that.
func dyingCreation(t testing.TB, table bigtableemulator.TableName, spec runstore.RunSpec) {
	t.Helper()
	d := openDying(t, table)
	err := d.dieAt(t, served(table, swaps), func(ctx context.Context) error {
		_, err := d.CreateRun(ctx, spec)
		return err
	})
	if !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want ErrUnknownOutcome", err)
	}
}
