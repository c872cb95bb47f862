package emulators

import (
	"hash/maphash"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// bigtableLocks keep apart what the emulator gets wrong when it does both at a time: a
// read and a write of the same row, and DropRowRange and any write. Rows share a number
// of locks, which are taken in order.
type bigtableLocks struct{ rows [64]sync.RWMutex }

var bigtableSeed = maphash.MakeSeed()

// lock waits until a request may run, and returns how to tell its end.
func (l *bigtableLocks) lock(req any) (unlock func()) {
	writes := true
	var keys [][]byte
	switch req := req.(type) {
	case *bigtablepb.MutateRowRequest:
		keys = append(keys, req.RowKey)
	case *bigtablepb.CheckAndMutateRowRequest:
		keys = append(keys, req.RowKey)
	case *bigtablepb.ReadModifyWriteRowRequest:
		keys = append(keys, req.RowKey)
	case *bigtablepb.MutateRowsRequest:
		for _, entry := range req.Entries {
			keys = append(keys, entry.RowKey)
		}
	case *bigtablepb.ReadRowsRequest:
		writes = false
		if len(req.GetRows().GetRowRanges()) == 0 {
			keys = req.GetRows().GetRowKeys()
		}
	case *adminpb.DropRowRangeRequest:
	default:
		return func() {}
	}
	which := l.of(keys)
	for _, i := range which {
		if writes {
			l.rows[i].Lock()
		} else {
			l.rows[i].RLock()
		}
	}
	return func() {
		for _, i := range which {
			if writes {
				l.rows[i].Unlock()
			} else {
				l.rows[i].RUnlock()
			}
		}
	}
}

// of returns the locks of rows, in order; no rows at all are all rows.
func (l *bigtableLocks) of(keys [][]byte) (which []int) {
	if len(keys) == 0 {
		for i := range l.rows {
			which = append(which, i)
		}
		return which
	}
	for _, key := range keys {
		which = append(which, int(maphash.Bytes(bigtableSeed, key)%uint64(len(l.rows))))
	}
	slices.Sort(which)
	return slices.Compact(which)
}
