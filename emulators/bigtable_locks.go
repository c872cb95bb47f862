package emulators

import (
	"hash/maphash"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// bigtableLocks keep apart what the emulator gets wrong when it does both at a time:
// reads and writes of the same row, and DropRowRange and anything. Rows share a number of
// locks, which are taken in order.
type bigtableLocks struct{ rows [64]roomLock }

var bigtableSeed = maphash.MakeSeed()

// The rooms of a lock.
const (
	roomRead = iota
	roomWrite
	roomDropRange
	roomCount
)

// lock waits until a request may run, and returns how to tell its end.
func (l *bigtableLocks) lock(req any) (unlock func()) {
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

// roomLock lets any number into one room at a time, and nobody wait for ever: who comes
// while others wait for another room waits behind them. A lock that let one write in
// after the other would change how writers of a row contend, which the emulator does by
// itself.
type roomLock struct {
	mu      sync.Mutex
	inside  [roomCount]int
	waiting [roomCount]int
	opens   [roomCount]chan struct{} // for those who wait
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

// of returns the locks of rows, in order; no rows at all are all rows.
func (l *bigtableLocks) locksOf(keys [][]byte) (which []int) {
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
