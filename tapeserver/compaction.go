package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) ListCompactableRuns(ctx context.Context, req *tapepb.ListCompactableRunsRequest) (*tapepb.ListCompactableRunsResponse, error) {
	before, limit := clockOf(req.GetBeforeMs()), limitOf(req.GetLimit())
	runs, next, err := listed(ctx, s, req.GetPageToken(), "compactable runs",
		func() ([]tape.Run, error) { return s.tape.ListCompactableRuns(ctx, before, limit) },
		func(p tape.Part) ([]tape.Run, string, error) { return p.ListCompactableRuns(ctx, before, limit) })
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListCompactableRunsResponse{NextPageToken: next}
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
