package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) SetTimer(ctx context.Context, req *tapepb.SetTimerRequest) (*tapepb.TimerRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	m, err := s.tape.SetTimer(ctx, tape.Timer{
		Run: id, ID: req.GetTimerId(), FireAtMS: req.GetFireAtMs(), Kind: req.GetKind(), Payload: req.GetPayloadJson(),
	}, fence)
	if err != nil {
		return nil, statusOf(err)
	}
	return timerRecord(m), nil
}

func (s *service) CancelTimer(ctx context.Context, req *tapepb.CancelTimerRequest) (*tapepb.CancelTimerResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	cancelled, err := s.tape.CancelTimer(ctx, id, req.GetTimerId(), fence)
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.CancelTimerResponse{Cancelled: cancelled}, nil
}

func (s *service) ListDueTimers(ctx context.Context, req *tapepb.ListDueTimersRequest) (*tapepb.ListDueTimersResponse, error) {
	q := tape.DueTimersQuery{Now: clockOf(req.GetNowMs()), Limit: limitOf(req.GetLimit()), Claim: req.GetClaim()}
	due, next, err := listed(ctx, s, req.GetPageToken(), "due timers",
		func() ([]tape.Timer, error) { return s.tape.ListDueTimers(ctx, q) },
		func(p tape.Part) ([]tape.Timer, string, error) { return p.ListDueTimers(ctx, q) })
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListDueTimersResponse{NextPageToken: next}
	for _, m := range due {
		response.Timers = append(response.Timers, timerRecord(m))
	}
	return response, nil
}

func timerRecord(m tape.Timer) *tapepb.TimerRecord {
	return &tapepb.TimerRecord{
		RunId: string(m.Run), TimerId: m.ID, FireAtMs: m.FireAtMS, Kind: m.Kind, PayloadJson: m.Payload,
		Fired: m.Fired, CreatedAtMs: millis(m.CreatedAt),
	}
}
