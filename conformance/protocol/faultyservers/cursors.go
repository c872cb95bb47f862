package faultyservers

import (
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func cursorServers() []Server {
	const id = "T6/cursors-skip-and-repeat-nothing"
	return []Server{
		{
			Name: "cursor-is-inclusive", Case: id,
			Breaks: "It sends the entry of the cursor again, so a relay that resumes publishes it twice.",
			fault: func() fault {
				return fault{request: func(req proto.Message) {
					if m, ok := req.(*tapepb.SubscribeBySubjectRequest); ok && m.GetFromGlobalSeq() > 0 {
						m.FromGlobalSeq--
					}
				}}
			},
		},
		{
			Name: "cursor-skips-one", Case: id,
			Breaks: "It omits an entry, like a server whose numbers become visible out of order.",
			fault: func() fault {
				skipped := &chosen{}
				return fault{events: func() func(*tapepb.EventEntry) []*tapepb.EventEntry {
					return func(e *tapepb.EventEntry) []*tapepb.EventEntry {
						if skipped.is(e) {
							return nil
						}
						return []*tapepb.EventEntry{e}
					}
				}}
			},
		},
		{
			Name: "feed-out-of-order", Case: id,
			Breaks: "It sends entries as their commits become visible and not by number, so a cursor skips an entry that becomes visible late.",
			fault: func() fault {
				held := &chosen{}
				return fault{events: func() func(*tapepb.EventEntry) []*tapepb.EventEntry {
					var late *tapepb.EventEntry
					return func(e *tapepb.EventEntry) (send []*tapepb.EventEntry) {
						if held.is(e) {
							late = e
						}
						if late != e {
							send = append(send, e)
							if late != nil {
								send, late = append(send, late), nil
							}
						}
						return send
					}
				}}
			},
		},
	}
}

// chosen is one entry of the feed, the first decision on any stream, to which the fault applies on
// every stream. A fault on a single stream could hit one that its reader has already left.
type chosen struct{ number atomic.Int64 }

func (c *chosen) is(e *tapepb.EventEntry) bool {
	if e.GetKind() != "decision" {
		return false
	}
	c.number.CompareAndSwap(0, e.GetGlobalSeq())
	return c.number.Load() == e.GetGlobalSeq()
}
