package bigtable

import (
	"hash/maphash"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// rowLocks is a set of striped locks. They exclude the operations that the emulator gets wrong
// when they run at the same time: reads and writes of the same row, and DropRowRange and anything
// else. Locks are taken in order, so that no two requests deadlock.
type rowLocks struct{ rows [64]roomLock }

var hashSeed = maphash.MakeSeed()

// The rooms of a lock.
const (
	roomRead = iota
	roomWrite
	roomDropRange
	roomCount
)

// lock blocks until a request may run. The caller calls unlock when the request has ended.
func (l *rowLocks) lock(req any) (unlock func()) {
	room := roomWrite
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
		room = roomRead
		if len(req.GetRows().GetRowRanges()) == 0 {
			keys = req.GetRows().GetRowKeys()
		}
	case *adminpb.DropRowRangeRequest:
		room = roomDropRange
	default:
		return func() {}
	}
	which := l.locksOf(keys)
	for _, i := range which {
		l.rows[i].enter(room)
	}
	return func() {
		for _, i := range which {
			l.rows[i].leave(room)
		}
	}
}

// roomLock admits any number of holders to one room at a time. A caller that arrives while others
// wait for another room waits behind them, so no caller starves.
//
// A plain mutex would serialize the writes of a row and so change how they contend; the emulator
// handles concurrent writes correctly by itself.
type roomLock struct {
	mu      sync.Mutex
	inside  [roomCount]int
	waiting [roomCount]int
	opens   [roomCount]chan struct{} // closed to admit the waiters of a room
}

func (l *roomLock) enter(room int) {
	l.mu.Lock()
	free := true
	for other := range roomCount {
		free = free && (other == room || l.inside[other] == 0 && l.waiting[other] == 0)
	}
	if free {
		l.inside[room]++
		l.mu.Unlock()
		return
	}
	if l.waiting[room]++; l.opens[room] == nil {
		l.opens[room] = make(chan struct{})
	}
	opens := l.opens[room]
	l.mu.Unlock()
	<-opens
}

func (l *roomLock) leave(room int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inside[room]--; l.inside[room] > 0 {
		return
	}
	for n := range roomCount {
		if next := (room + 1 + n) % roomCount; l.waiting[next] > 0 {
			l.inside[next], l.waiting[next] = l.waiting[next], 0
			close(l.opens[next])
			l.opens[next] = nil
			return
		}
	}
}

// locksOf returns the indexes of the rows' locks, in order. No keys means all rows.
func (l *rowLocks) locksOf(keys [][]byte) (which []int) {
	if len(keys) == 0 {
		for i := range l.rows {
			which = append(which, i)
		}
		return which
	}
	for _, key := range keys {
		which = append(which, int(maphash.Bytes(hashSeed, key)%uint64(len(l.rows))))
	}
	slices.Sort(which)
	return slices.Compact(which)
}
