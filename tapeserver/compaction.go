package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) ListCompactableRuns(ctx context.Context, req *tapepb.ListCompactableRunsRequest) (*tapepb.ListCompactableRunsResponse, error) {
	runs, err := s.tape.ListCompactableRuns(ctx, clockOf(req.GetBeforeMs()), limitOf(req.GetLimit()))
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListCompactableRunsResponse{}
	for _, r := range runs {
		response.Runs = append(response.Runs, runState(r))
	}
	return response, nil
}

func (s *service) CompactRun(ctx context.Context, req *tapepb.CompactRunRequest) (*tapepb.CompactRunResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	c, err := s.tape.CompactRun(ctx, id, fence)
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.CompactRunResponse{
		DecisionsZeroed: c.Decisions, EffectsZeroed: c.Effects, BytesSaved: c.Bytes, AlreadyCompacted: c.Already,
	}, nil
}
