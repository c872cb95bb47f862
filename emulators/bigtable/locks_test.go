package bigtable

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// No two kinds of requests are ever at the same rows, and all of them end.
func TestLocks(t *testing.T) {
	t.Parallel()
	var l rowLocks
	var inside [roomCount]atomic.Int64
	everything := &bigtablepb.RowSet{RowRanges: []*bigtablepb.RowRange{{}}}
	var running sync.WaitGroup
	for i := range 30 {
		key := []byte(fmt.Sprint("row ", i%3))
		req, room := []any{
			&bigtablepb.MutateRowRequest{RowKey: key},
			&bigtablepb.ReadRowsRequest{Rows: everything},
			&bigtablepb.MutateRowsRequest{Entries: []*bigtablepb.MutateRowsRequest_Entry{{RowKey: key}, {RowKey: []byte("row 1")}, {RowKey: key}}},
			&adminpb.DropRowRangeRequest{},
			&bigtablepb.ReadRowsRequest{},
		}[i%5], []int{roomWrite, roomRead, roomWrite, roomDropRange, roomRead}[i%5]
		running.Go(func() {
			for range 200 {
				unlock := l.lock(req)
				inside[room].Add(1)
				for other := range roomCount {
					if n := inside[other].Load(); other != room && n > 0 {
						t.Errorf("%d of kind %d beside one of kind %d", n, other, room)
					}
				}
				inside[room].Add(-1)
				unlock()
			}
		})
	}
	running.Wait()
}

// Writes of one row do not wait for each other, nor do reads.
func TestLocksAreShared(t *testing.T) {
	t.Parallel()
	var l rowLocks
	for _, req := range []any{&bigtablepb.MutateRowRequest{RowKey: []byte("row")}, &bigtablepb.ReadRowsRequest{}} {
		one := l.lock(req)
		l.lock(req)() // or it waits for ever
		one()
	}
}
