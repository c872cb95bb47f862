package bigtable

import (
	"encoding/binary"
	"errors"

	"cloud.google.com/go/bigtable"
)

// Consecutive events share a cell while they are small, because a row with few cells is cheaper to
// filter and to store. A commit writes the last cell again with its events appended, from what the
// handle remembers. A handle that does not remember the cell begins another one.
const (
	cellEvents = 16
	cellBytes  = 2 << 10
)

// tail is the last cell of a run's events, to which a commit may add.
type tail struct {
	first int64 // the seq of its first event; 0 if the handle does not know the cell
	n     int
	cell  []byte
}

// addEvent appends an event, the one with the seq of the head, to the tail, or begins a new one. A cell
// ends where a segment of the journal ends.
func (e *edit) addEvent(event []byte) {
	t := &e.tail
	size := len(event) + binary.MaxVarintLen32
	if t.first == 0 || t.n == cellEvents || len(t.cell)+size > cellBytes || (e.head.Seq-1)%segmentSize == 0 {
		if t.n > 0 && t.first+int64(t.n) > int64(e.done.FirstSeq) { // it has events of this change
			e.setTail()
		}
		*t = tail{first: e.head.Seq}
	}
	before := len(t.cell)
	t.n++
	// append must copy: the bytes before belong to the run until the change is applied.
	t.cell = appendFramed(t.cell[:before:before], event)
	e.head.EventBytes += int64(len(t.cell) - before)
}

// setTail writes the tail.
func (e *edit) setTail() { e.set(familyEvents, be64(e.tail.first), e.tail.cell) }

// appendFramed appends the length of an event and the event.
func appendFramed(cell, event []byte) []byte {
	return append(binary.AppendUvarint(cell, uint64(len(event))), event...)
}

// cutFrame returns the first frame of a cell, and the bytes after it.
func cutFrame(cell []byte) (frame, rest []byte, ok bool) {
	n, used := binary.Uvarint(cell)
	if used <= 0 || uint64(len(cell)-used) < n {
		return nil, nil, false
	}
	return cell[used : used+int(n)], cell[used+int(n):], true
}

// eachFramed calls f for each event of a cell.
func eachFramed(cell []byte, first int64, f func(e journalEvent, bytes []byte) error) error {
	for seq := first; len(cell) > 0; seq++ {
		bytes, rest, ok := cutFrame(cell)
		if !ok {
			return errFrames
		}
		one, err := journalEvent{seq: seq}, error(nil)
		if one.data, err = decodeCell(bytes, &one.meta); err != nil {
			return err
		}
		if err := f(one, bytes); err != nil {
			return err
		}
		cell = rest
	}
	return nil
}

var errFrames = corrupt(errors.New("events that this program did not write"))

// eventColumns selects the cells that hold events from one seq up to another.
func eventColumns(from, to int64) bigtable.Filter {
	return columns(familyEvents, be64(max(from-cellEvents+1, 1)), be64(to+1))
}

// events calls f for the events of a row that are not sealed, up to the last event of its head.
func (r *row) events(f func(e journalEvent, bytes []byte) error) error {
	for _, item := range r.cells[familyEvents] {
		column := qualifier(familyEvents, item)
		if len(column) != 8 {
			return errFrames
		}
		first := fromBE64(column)
		if first <= r.head.Sealed*segmentSize {
			continue // the events of the cell are sealed
		}
		err := eachFramed(item.Value, first, func(e journalEvent, bytes []byte) error {
			if e.seq > r.head.Seq {
				return nil
			}
			return f(e, bytes)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
