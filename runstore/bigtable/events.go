package bigtable

import (
	"encoding/binary"
	"errors"

	"cloud.google.com/go/bigtable"
)

// Events that follow each other share a cell while they are small: a row of few cells
// is cheaper to filter and to store than one of many. A commit writes the cell that it
// adds to anew, from what the handle remembers; a handle that does not know the cell
// begins another. Readers meet both.
const (
	cellEvents = 16
	cellBytes  = 2 << 10
)

// tail is the last cell of a run's events, to which a commit may add.
type tail struct {
	first int64 // the seq of its first event; 0: not known
	n     int
	cell  []byte
}

// addEvent adds an event, the one with the seq of the head, to the tail, or begins a
// new one. Cells do not reach over the end of a segment.
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
	// The bytes of the former tail are the run's until the change is made.
	t.cell = appendFramed(t.cell[:before:before], event)
	e.head.EventBytes += int64(len(t.cell) - before)
}

// setTail writes the tail.
func (e *edit) setTail() { e.set(familyEvents, be64(e.tail.first), e.tail.cell) }

// appendFramed adds an event to others, its length before it.
func appendFramed(cell, event []byte) []byte {
	return append(binary.AppendUvarint(cell, uint64(len(event))), event...)
}

// eachFramed takes events apart.
func eachFramed(cell []byte, first int64, f func(e journalEvent, bytes []byte) error) error {
	for seq := first; len(cell) > 0; seq++ {
		n, used := binary.Uvarint(cell)
		if used <= 0 || uint64(len(cell)-used) < n {
			return errFrames
		}
		one := journalEvent{seq: seq}
		bytes := cell[used : used+int(n)]
		var err error
		if one.data, err = decodeCell(bytes, &one.meta); err != nil {
			return err
		}
		if err := f(one, bytes); err != nil {
			return err
		}
		cell = cell[used+int(n):]
	}
	return nil
}

var errFrames = corrupt(errors.New("events that this program did not write"))

// eventColumns selects the cells that hold events from one seq up to another.
func eventColumns(from, to int64) bigtable.Filter {
	return columns(familyEvents, be64(max(from-cellEvents+1, 1)), be64(to+1))
}

// events calls f for the events of a row up to the last that its head names, those that are
// sealed left out.
func (r *row) events(f func(e journalEvent, bytes []byte) error) error {
	for _, item := range r.cells[familyEvents] {
		column := qualifier(familyEvents, item)
		if len(column) != 8 {
			return errFrames
		}
		first := fromBE64(column)
		if first <= r.head.Sealed*segmentSize {
			continue // its deletion came after a copy of the row was read
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
