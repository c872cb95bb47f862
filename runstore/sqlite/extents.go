package sqlite

import (
	"encoding/binary"

	"github.com/tapestore/tapestore/runstore"
)

// An extent is a sequence of events of one run at consecutive positions in the feed: the events of
// one batch. A run's row keeps the extents of its newest events in its column tail. When the tail
// grows past sealBytes, its extents are sealed into a row of journal. So recording the positions of
// a run's events costs a commit only a few bytes in a row that it changes anyway, at event
// 1,000,000 as at event 1,000.
type extent struct {
	pos   runstore.Position
	count int
}

// sealBytes is the size from which a tail is sealed: 160 bytes, to keep a run's row small. An
// extent takes 2 to 9 bytes.
const sealBytes = 160

func (e extent) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(e.pos))
	return binary.AppendUvarint(b, uint64(e.count))
}

func decodeExtents(b []byte) []extent {
	var all []extent
	for len(b) > 0 {
		pos, n := binary.Uvarint(b)
		if n <= 0 {
			break // occurs only in a damaged database; ReadJournal detects the missing events
		}
		count, m := binary.Uvarint(b[n:])
		if m <= 0 {
			break
		}
		all = append(all, extent{runstore.Position(pos), int(count)})
		b = b[n+m:]
	}
	return all
}
