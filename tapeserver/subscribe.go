package tapeserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// SubscribeRun sends the entries of a run's journal from a seq on, each once and in order, and
// continues with new ones until the client goes away or the server drains. The stream ends neither
// at the end of the run nor for a run that does not exist (yet). The global_seq of an entry is 0
// while the feed of all runs has not reached it.
func (s *service) SubscribeRun(req *tapepb.SubscribeRunRequest, stream grpc.ServerStreamingServer[tapepb.JournalEntry]) error {
	ctx, id := stream.Context(), runstore.RunID(req.GetRunId())
	if err := runstore.CheckRunID(id); err != nil {
		return statusOf(err)
	}
	// Clients wait for the headers before they cause the events that they subscribed to.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for events, err := range s.tail.Follow(ctx, id, runstore.Seq(req.GetFromSeq())) {
		if err != nil {
			return s.streamEnd(ctx, err)
		}
		if err := s.confirm(ctx, runOf(ctx)); err != nil {
			return err
		}
		for _, e := range events {
			if err := stream.Send(journalEntry(tape.EntryOf(id, e))); err != nil {
				return err
			}
		}
	}
	return nil
}

// streamEnd returns the status of a stream that cannot continue because of err.
func (s *service) streamEnd(ctx context.Context, err error) error {
	select {
	case <-s.draining:
		return errShuttingDown
	default:
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // the status of a limit; see Limits
		return err
	}
	return statusOf(err)
}
