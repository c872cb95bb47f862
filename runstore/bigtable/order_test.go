package bigtable_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// reordering has Bigtable apply one entry of each MutateRows request that changes rows of
// runs before the others, the one with the highest timestamp, and calls between after it.
// The API promises no order of the entries, those for one row included.
type reordering struct {
	grpc.ClientStream
	single  func() (grpc.ClientStream, error)
	between func()
}

func (r *reordering) SendMsg(m any) error {
	req, ok := m.(*bigtablepb.MutateRowsRequest)
	if !ok || len(req.Entries) == 1 || req.Entries[0].RowKey[0] != 'r' {
		return r.ClientStream.SendMsg(m)
	}
	last := slices.MaxFunc(req.Entries, func(a, b *bigtablepb.MutateRowsRequest_Entry) int { return cmp.Compare(timestamp(a), timestamp(b)) })
	one, err := r.single()
	if err != nil {
		return err
	}
	first := &bigtablepb.MutateRowsRequest{TableName: req.TableName, AppProfileId: req.AppProfileId, Entries: []*bigtablepb.MutateRowsRequest_Entry{last}}
	if err := errors.Join(one.SendMsg(first), one.CloseSend()); err != nil {
		return err
	}
	for err == nil {
		err = one.RecvMsg(new(bigtablepb.MutateRowsResponse))
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	r.between()
	return r.ClientStream.SendMsg(m)
}

// timestamp is the highest of an entry's cells.
func timestamp(e *bigtablepb.MutateRowsRequest_Entry) (highest int64) {
	for _, m := range e.Mutations {
		highest = max(highest, m.GetSetCell().GetTimestampMicros())
	}
	return highest
}

// The positions of a run's events are written back whole: no seal, whenever it comes, finds
// an event that the feed has without its position (I10).
func TestPositionsAreWrittenInAnyOrder(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	sealer, reader := openBare(t, table), openBare(t, table)
	s := openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				single := func() (grpc.ClientStream, error) { return begin(ctx, desc, cc, method) }
				stream, err := begin(ctx, desc, cc, method, opts...)
				if err != nil || path.Base(method) != writes {
					return stream, err
				}
				return &reordering{stream, single, func() {
					if err := bigtable.Seal(ctx, sealer, "run"); err != nil {
						t.Errorf("seal: %v", err)
					}
				}}, nil
			}))
	})
	lease := hold(t, s, "run")
	fill(t, s, lease, 1, 100)
	// A handle puts the events into the log, and dies before it writes their positions back.
	dead := openDying(t, table)
	err := dead.dieAt(t, func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == writes && len(c.Row) > 0 && c.Row[0] == 'r'
	}, func(ctx context.Context) error { return bigtable.Publish(ctx, dead.Store, "run") })
	if err == nil {
		t.Fatal("the handle did not die")
	}
	fill(t, s, lease, 101, 100)
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	seal(t, sealer, "run")
	readsAs(t, reader, 200)
	inFeed(t, reader, 200)
}
