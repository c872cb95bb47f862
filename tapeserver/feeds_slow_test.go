package tapeserver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A subscriber of a feed that does not read is ended with the place where to resume. From there on
// nothing is missing.
func TestASlowSubscriberIsToldWhereToResume(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"SubscribeEvents", "SubscribeBySubject"} {
		for _, size := range []int{3 << 10, 8 << 10} { // the server counts the bytes of an entry of more than 4 KiB
			t.Run(fmt.Sprint(method, size), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { slowSubscriberResumes(t, method, size) })
			})
		}
	}
}

// slowSubscriberResumes checks a slow subscriber of entries of a size.
func slowSubscriberResumes(t *testing.T, method string, size int) {
	store := memory.New(nil)
	other, _ := start(t, store.Open(), nil)
	run := begin(t, other, "i").GetRunId()
	const decisions = 40 // more than the 64 KiB that wait in the stream
	for i := range int64(decisions) {
		if _, err := other.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: i, Rationale: strings.Repeat("x", size)}); err != nil {
			t.Fatal(err)
		}
	}
	c := unreadable(t, inMemory(t, store.Open(), &tapeserver.Options{Logger: quietly}, 1<<20))
	slow := c.call(t, method)
	var request proto.Message = &tapepb.SubscribeBySubjectRequest{}
	if method == "SubscribeEvents" {
		request = &tapepb.SubscribeEventsRequest{}
	}
	c.send(t, slow, request, -1)
	if err := c.answered(t, slow); err != nil {
		t.Fatal(err)
	}
	time.Sleep(45 * time.Second) // after 30 s the stream is ended, and after 60 s the connection is closed
	delivered, err := c.rest(t, slow)
	wantStatus(t, "the slow stream", err, codes.ResourceExhausted, "limit SendTimeout is 30s")
	_, place, found := strings.Cut(status.Convert(err).Message(), "; resume from global_seq ")
	resume, parseErr := strconv.ParseInt(place, 10, 64)
	if !found || parseErr != nil || len(delivered) == 0 {
		t.Fatalf("after %d entries the status is %v", len(delivered), err)
	}
	last := delivered[len(delivered)-1].GetGlobalSeq()
	// An entry that was being sent as the stream ended may have arrived.
	if resume > last || resume < last-1 {
		t.Errorf("after entry %d the status says %v", last, err)
	}
	rest := opened(t)(feeds[method](t.Context(), other, "/**", resume)) // from 0 without a pattern a run and a kind would select
	if got := received(t, rest, decisions+1-int(resume)); got[0].GetGlobalSeq() != resume+1 {
		t.Errorf("behind %d: %v", resume, got[0])
	}
}

// A subscriber that leaves one large entry unread loses its stream, and not its connection: other calls on it
// are answered before, at and after the end of the stream.
func TestALargeEntryUnreadDoesNotCloseTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		other, _ := start(t, store.Open(), nil)
		run := begin(t, other, "i").GetRunId()
		if _, err := other.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run, Rationale: strings.Repeat("x", 100<<10)}); err != nil {
			t.Fatal(err)
		}
		c := unreadable(t, inMemory(t, store.Open(), &tapeserver.Options{Logger: quietly}, 1<<20))
		slow := c.call(t, "SubscribeEvents")
		c.send(t, slow, &tapepb.SubscribeEventsRequest{}, -1)
		if err := c.answered(t, slow); err != nil {
			t.Fatal(err)
		}
		for range 3 { // until 45 s
			time.Sleep(15 * time.Second)
			get := c.call(t, "GetRun")
			if err := c.WriteWindowUpdate(get, 1<<20); err != nil {
				t.Fatal(err)
			}
			c.send(t, get, &tapepb.GetRunRequest{RunId: run}, -1)
			if err := c.status(t, get); err != errOK {
				t.Fatalf("another call: %v", err)
			}
		}
		got, err := c.rest(t, slow)
		wantStatus(t, "the slow stream", err, codes.ResourceExhausted, "; resume from global_seq 2")
		if len(got) != 2 || got[1].GetGlobalSeq() != 2 {
			t.Errorf("%d entries arrived before the status, want both", len(got))
		}
	})
}

// A stream at the end of a journal does not hold a page that has no room in the bytes in flight: it reads the page
// again once there is room.
func TestAPageThatWaitsForRoomIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		other, _ := start(t, store.Open(), nil)
		run := begin(t, other, "i").GetRunId()
		for i := range int64(40) { // more than the 64 KiB that wait in a stream
			if _, err := other.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: i, Rationale: strings.Repeat("x", 3<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		from := new(atomic.Int64)
		lis := inMemory(t, lastRead{quiet{store.Open()}, from}, &tapeserver.Options{
			Logger: quietly, Limits: tapeserver.Limits{BytesInFlight: 8 << 20}, // one page at a time
		}, 1<<20)
		follower := speak(t, dialMemory(t, lis)).begin(t)
		if err := follower.WriteWindowUpdate(0, 1<<30); err != nil {
			t.Fatal(err)
		}
		stream := follower.call(t, "SubscribeRun")
		follower.send(t, stream, &tapepb.SubscribeRunRequest{RunId: run, FromSeq: 42}, -1)
		if err := follower.answered(t, stream); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the slow stream does not end at the time of a poll of the journal
		slow := unreadable(t, lis)
		feed := slow.call(t, "SubscribeEvents")
		slow.send(t, feed, &tapepb.SubscribeEventsRequest{}, -1)
		if err := slow.answered(t, feed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		large := &tapepb.RecordDecisionRequest{RunId: run, DecisionIndex: 40, Rationale: strings.Repeat("x", 8<<10)}
		if _, err := other.RecordDecision(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		from.Store(0)
		follower.await(t, "the entry", func(f http2.Frame) bool { _, data := f.(*http2.DataFrame); return data }) // after 30 s the slow stream is ended
		if seq := from.Load(); seq != 42 {
			t.Errorf("once there was room the journal was read from seq %d, want that of the entry, 42", seq)
		}
		_ = slow.Close()
	})
}

// lastRead is a store that stores the seq from which a journal was last read.
type lastRead struct {
	quiet
	from *atomic.Int64
}

func (s lastRead) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	s.from.Store(int64(from))
	return s.quiet.ReadJournal(ctx, id, from, limit)
}

// rest takes everything that waits in a stream of a feed, and returns the entries and the stream's status,
// which comes after them.
func (r *raw) rest(t *testing.T, stream uint32) ([]*tapepb.EventEntry, error) {
	t.Helper()
	for _, window := range []uint32{0, stream} { // the connection's and the stream's
		if err := r.WriteWindowUpdate(window, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	var data []byte
	for r.ended[stream] == nil {
		r.await(t, "the end of the stream", func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok && d.StreamID == stream {
				data = append(data, d.Data()...)
			}
			return true
		})
	}
	return entriesIn(t, data), r.ended[stream]
}

// entriesIn returns the entries in the bytes of a stream.
func entriesIn(t *testing.T, data []byte) (all []*tapepb.EventEntry) {
	t.Helper()
	for len(data) > 0 {
		n := binary.BigEndian.Uint32(data[1:])
		e := &tapepb.EventEntry{}
		if err := proto.Unmarshal(data[5:5+n], e); err != nil {
			t.Fatal(err)
		}
		all, data = append(all, e), data[5+n:]
	}
	return all
}

// counting is a store that counts the reads of one event of the feed, and whose events have times of a test.
type counting struct {
	quiet
	reads *atomic.Int64
	times func(runstore.Position) time.Time
}

func (s counting) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if q.Limit == 1 {
		s.reads.Add(1)
	}
	events, err := s.quiet.ReadFeed(ctx, q)
	events = slices.Clone(events)
	for i := range events {
		events[i].Time = s.times(events[i].Position)
	}
	return events, err
}

// Without a cursor a subscription begins near its time, with few reads, and leaves out exactly what
// is older, however entries of about the same time are ordered.
func TestSubscribeEventsFromATime(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	writer, _ := start(t, store.Open(), nil)
	id := begin(t, writer, "i").GetRunId()
	const entries = 2000
	for i := range int64(entries - 1) {
		decide(t, writer, id, i)
	}
	origin := time.UnixMilli(1_700_000_000_000)
	// A minute from one entry to the next, and the entries of 4 minutes in reverse.
	times := func(p runstore.Position) time.Time {
		n := int64(p) - 1
		return origin.Add(time.Duration(n-n%4+3-n%4) * time.Minute)
	}
	reads := new(atomic.Int64)
	c, _ := start(t, counting{quiet{store.Open()}, reads, times}, nil)
	for _, minute := range []int{1, 2, 3, 4, 1000, 1001, 1002, 1003, 1995, 1996, 1999} {
		since := origin.Add(time.Duration(minute) * time.Minute)
		var want []string
		for p := runstore.Position(1); p <= entries; p++ {
			if !times(p).Before(since) {
				want = append(want, strconv.Itoa(int(p)))
			}
		}
		before := reads.Load()
		stream := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{FromTsMs: since.UnixMilli()}))
		var got []string
		for _, e := range received(t, stream, len(want)) {
			got = append(got, fmt.Sprint(e.GetGlobalSeq()))
		}
		if !slices.Equal(got, want) {
			t.Errorf("from minute %d: %.60v, want %.60v", minute, got, want)
		}
		if n := reads.Load() - before; n > 14 { // 2,000 positions, the end, and that of the shared reader
			t.Errorf("from minute %d: %d reads to find the beginning", minute, n)
		}
	}
	later := opened(t)(c.SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{FromTsMs: origin.Add(entries * time.Minute).UnixMilli()}))
	decide(t, writer, id, entries)
	if got := received(t, later, 1)[0]; got.GetGlobalSeq() != entries+1 {
		t.Errorf("from a time to come: %v", got)
	}
}
