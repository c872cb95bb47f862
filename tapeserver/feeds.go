package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// feedFilter selects entries of the feed of all runs. The zero filter selects all.
type feedFilter struct {
	since     int64 // earliest ts_ms; 0 for any
	run, kind string
	pattern   tape.Pattern
	predicate *predicate.Predicate // nil for none
}

// selects reports whether the filter selects an entry. A predicate that fails selects nothing.
func (f feedFilter) selects(in *predicate.Input) bool {
	return f.names(in) && (f.predicate == nil || f.predicate.Match(in))
}

// names reports whether the filter without its predicate selects an entry.
func (f feedFilter) names(in *predicate.Input) bool {
	e := &in.Entry
	return (f.since == 0 || e.Time.UnixMilli() >= f.since) &&
		(f.run == "" || string(e.Run) == f.run) && (f.kind == "" || e.Kind == f.kind) &&
		f.pattern.Match(e.Subject)
}

// SubscribeEvents sends the entries of all runs after from_global_seq that match the pattern, each
// once and in the order of global_seq. Without a cursor and a pattern it sends the entries from a
// time on, of one run and one kind if these are named, each once. It continues with new entries
// until the client goes away or the server drains.
func (s *service) SubscribeEvents(req *tapepb.SubscribeEventsRequest, stream grpc.ServerStreamingServer[tapepb.EventEntry]) error {
	f := feedFilter{}
	if req.GetFromGlobalSeq() == 0 && req.GetSubjectPattern() == "" {
		f.since, f.run, f.kind = max(req.GetFromTsMs(), 0), req.GetRunId(), req.GetKind()
	}
	var err error
	if f.pattern, err = tape.ParsePattern(req.GetSubjectPattern()); err != nil {
		return statusOf(err)
	}
	return s.feed(stream, req.GetFromGlobalSeq(), f)
}

// SubscribeBySubject sends the entries of all runs after from_global_seq that match the pattern and
// the predicate, as SubscribeEvents does. A predicate that fails selects nothing.
func (s *service) SubscribeBySubject(req *tapepb.SubscribeBySubjectRequest, stream grpc.ServerStreamingServer[tapepb.EventEntry]) error {
	f, err := feedFilter{}, error(nil)
	if f.pattern, err = tape.ParsePattern(req.GetSubjectPattern()); err != nil {
		return statusOf(err)
	}
	if f.predicate, err = s.predicates.Compile(req.GetPredicateCel()); err != nil {
		return statusOf(err)
	}
	return s.feed(stream, req.GetFromGlobalSeq(), f)
}

// feed sends the entries of the feed after a position that a filter selects. It buffers only the
// page that is being sent. The send timeout runs while the client does not read; how far the client
// lags does not matter.
func (s *service) feed(stream grpc.ServerStreamingServer[tapepb.EventEntry], from int64, f feedFilter) error {
	if from < 0 || from > int64(runstore.MaxPosition) {
		return statusOf(&runstore.InputError{Kind: runstore.ErrInvalid, Field: "from_global_seq",
			Problem: fmt.Sprintf("%d, it is from 0 to %d", from, runstore.MaxPosition)})
	}
	// Clients wait for the headers before they cause the events that they subscribed to.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	ctx, after := stream.Context(), runstore.Position(from)
	if f.since > 0 {
		var err error
		if after, err = startOf(ctx, s.tail.Store(), time.UnixMilli(f.since)); err != nil {
			return s.streamEnd(ctx, err)
		}
	}
	own := s.ownEntriesOf(ctx)
	at := resumePoint(ctx)
	at.Store(int64(after))
	for events, err := range s.tail.Feed(ctx, after) {
		if err != nil {
			end := s.streamEnd(ctx, err)
			if errors.Is(err, runstore.ErrStoreBehind) { // the store does not have the position
				return end
			}
			return resumable(end, at.Load())
		}
		mine, err := own.of(ctx, events, f)
		if err != nil {
			return resumable(s.streamEnd(ctx, err), at.Load())
		}
		// Before any of them is sent, since the time for sending a page is bounded.
		selected := make([]bool, len(events))
		for i, e := range events {
			if ctx.Err() != nil {
				return resumable(s.streamEnd(ctx, ctx.Err()), at.Load())
			}
			selected[i] = (mine == nil || mine[i]) && f.wants(e)
		}
		for i, e := range events {
			if selected[i] {
				if err := sendEvent(stream, e); err != nil {
					return err
				}
			}
			at.Store(int64(e.Position))
		}
	}
	return nil
}

// wants reports whether the filter selects an event. It selects one that the store cannot read, unless the
// event is known to belong to another run.
func (f feedFilter) wants(e tail.FeedEvent) bool {
	if e.Err != nil {
		return f.run == "" || e.Run == "" || string(e.Run) == f.run
	}
	in, ok := e.Derived.(*predicate.Input)
	return ok && f.selects(in)
}

// sendEvent sends an event. One that the store cannot read ends the stream, since the client may wait for it.
func sendEvent(stream grpc.ServerStreamingServer[tapepb.EventEntry], e tail.FeedEvent) error {
	if e.Err != nil {
		return resumable(statusOf(e.Err), int64(e.Position))
	}
	return stream.Send(eventEntry(e.Derived.(*predicate.Input).Entry))
}

// deriveInput returns the value that all subscribers share for an event: its entry with the parsed
// payload. It is nil for an event that the feed leaves out.
func deriveInput(e runstore.FeedEvent) any {
	entry, ok := tape.FeedEntryOf(e)
	if !ok {
		return nil
	}
	return predicate.NewInput(entry)
}

// resumeFrom is the key of the metadata of an ErrorInfo that has the position to resume from.
const resumeFrom = "resume_from_global_seq"

// resumable adds from_global_seq to a status that ends a feed: the position after which the client
// can resume. A status without an ErrorInfo is returned unchanged: the client or the server itself
// ended the stream.
func resumable(err error, from int64) error {
	s := status.Convert(err).Proto()
	for _, d := range s.GetDetails() {
		info := &errdetails.ErrorInfo{}
		if d.UnmarshalTo(info) != nil {
			continue
		}
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[resumeFrom] = fmt.Sprint(from)
		if d.MarshalFrom(info) != nil {
			continue
		}
		place := fmt.Sprintf("; resume from global_seq %d", from)
		s.Message = strings.ToValidUTF8(s.Message[:min(len(s.Message), maxMessage-len(place))], "") + place
		return status.FromProto(s).Err()
	}
	return err
}

// feedSlack is 5 minutes: the most by which the time of an entry may be later than that of a later
// entry in the feed. The two orders differ by the longest commit, up to 10 s on Postgres; the rest
// allows for clock steps on engines that use this machine's clock.
const feedSlack = 5 * time.Minute

// startOf returns a position of the feed up to which every entry is older than since, and after
// which few are. It is a binary search over positions, of at most 54 reads of one event. An event
// that cannot be read counts as new.
func startOf(ctx context.Context, store runstore.RunStore, since time.Time) (runstore.Position, error) {
	// Every entry before an entry that is older than since by the slack is older than since.
	read := func(q runstore.FeedQuery) (at runstore.Position, old bool, err error) {
		release, err := beginPage(ctx, runstore.MaxRecordValue)
		if err != nil {
			return 0, false, err
		}
		defer release()
		q.Limit = 1
		events, err := store.ReadFeed(ctx, q)
		if err != nil || len(events) == 0 {
			return 0, false, err
		}
		e := events[0]
		return e.Position, e.Err == nil && e.Time.Before(since.Add(-feedSlack)), nil
	}
	newest, old, err := read(runstore.FeedQuery{Newest: true})
	if err != nil || old || newest == 0 {
		return newest, err
	}
	// Invariant: every entry up to low is older than since; the first entry after high is not.
	low, high := runstore.Position(0), newest-1
	for low < high {
		middle := low + (high-low)/2
		first, old, err := read(runstore.FeedQuery{After: middle})
		switch {
		case err != nil:
			return 0, err
		case old:
			low = min(first, high)
		default:
			high = middle
		}
	}
	return low, nil
}
