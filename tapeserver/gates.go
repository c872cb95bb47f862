package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) AwaitSignal(ctx context.Context, req *tapepb.AwaitSignalRequest) (*tapepb.AwaitSignalResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	resolution, delivered, err := s.tape.AwaitSignal(ctx, tape.AwaitRequest{
		Run: id, Gate: req.GetGateName(), Context: req.GetPayloadJson(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	s.wrote(fence)
	if !delivered {
		s.released(ctx, fence)
	}
	return &tapepb.AwaitSignalResponse{Delivered: delivered, ResolutionJson: resolution}, nil
}

func (s *service) SendSignal(ctx context.Context, req *tapepb.SendSignalRequest) (*tapepb.SendSignalResponse, error) {
	id := runstore.RunID(req.GetRunId())
	if id == "" {
		var err error
		if id, err = s.newestOwn(ctx, req); err != nil {
			return nil, statusOf(err)
		}
	}
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	sent, err := s.tape.SendSignal(ctx, tape.Signal{
		Run: id, App: req.GetAppName(), User: req.GetUserId(), Session: req.GetSessionId(),
		Gate: req.GetGateName(), Resolution: req.GetResolutionJson(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.SendSignalResponse{Accepted: true, RunId: string(sent.Run)}
	if sent.Released {
		response.RunStatus = tapepb.RunStatus(tape.RunRunnable)
	}
	return response, nil
}
