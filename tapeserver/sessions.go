package tapeserver

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// sessionRequest is a request that names a session.
type sessionRequest interface {
	GetAppName() string
	GetUserId() string
	GetSessionId() string
}

func sessionKey(req sessionRequest) tape.SessionKey {
	return tape.SessionKey{App: req.GetAppName(), User: req.GetUserId(), Session: req.GetSessionId()}
}

func (s *service) CreateSession(ctx context.Context, req *tapepb.CreateSessionRequest) (*tapepb.Session, error) {
	fence, err := s.sessionFence(ctx, "", req)
	if err != nil {
		return nil, statusOf(err)
	}
	created, err := s.tape.CreateSession(ctx, sessionKey(req), req.GetStateJson(), fence)
	if err != nil {
		return nil, statusOf(err)
	}
	return session(created), nil
}

func (s *service) GetSession(ctx context.Context, req *tapepb.GetSessionRequest) (*tapepb.GetSessionResponse, error) {
	found, ok, err := s.tape.GetSession(ctx, sessionKey(req), limitOf(req.GetMaxEvents()))
	if err != nil {
		return nil, statusOf(err)
	}
	if !ok {
		return &tapepb.GetSessionResponse{}, nil
	}
	return &tapepb.GetSessionResponse{Found: true, Session: session(found), Truncated: found.Truncated}, nil
}

func (s *service) ListSessions(ctx context.Context, req *tapepb.ListSessionsRequest) (*tapepb.ListSessionsResponse, error) {
	all, err := s.tape.ListSessions(ctx, req.GetAppName(), req.GetUserId())
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListSessionsResponse{}
	for _, one := range all {
		response.Sessions = append(response.Sessions, session(one))
	}
	return response, nil
}

func (s *service) DeleteSession(ctx context.Context, req *tapepb.DeleteSessionRequest) (*tapepb.DeleteSessionResponse, error) {
	fence, err := s.sessionFence(ctx, "", req)
	if err != nil {
		return nil, statusOf(err)
	}
	deleted, err := s.tape.DeleteSession(ctx, sessionKey(req), fence)
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.DeleteSessionResponse{Deleted: deleted}, nil
}

func (s *service) AppendEvent(ctx context.Context, req *tapepb.AppendEventRequest) (*tapepb.AppendEventResponse, error) {
	e := req.GetEvent()
	if e == nil {
		return nil, status.Error(codes.InvalidArgument, "append_event: missing event")
	}
	run := tape.RunKey{App: req.GetAppName(), User: req.GetUserId(), Session: req.GetSessionId(), Invocation: e.GetInvocationId()}
	fence, err := s.sessionFence(ctx, run.ID(), req)
	if err != nil {
		return nil, statusOf(err)
	}
	appended, err := s.tape.AppendEvent(ctx, sessionKey(req), tape.SessionEvent{
		ID: e.GetId(), Invocation: e.GetInvocationId(), Author: e.GetAuthor(), Branch: e.GetBranch(),
		Content: e.GetContentJson(), Actions: e.GetActionsJson(), Time: clockOf(e.GetTimestampMs()),
	}, req.GetStateDeltaJson(), fence)
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	return &tapepb.AppendEventResponse{Event: eventRecord(appended), LastUpdateTimeMs: millis(appended.Time)}, nil
}

func session(s tape.Session) *tapepb.Session {
	answer := &tapepb.Session{
		AppName: s.App, UserId: s.User, SessionId: s.Session, StateJson: s.State, LastUpdateTimeMs: millis(s.Updated),
	}
	for _, e := range s.Events {
		answer.Events = append(answer.Events, eventRecord(e))
	}
	return answer
}

func eventRecord(e tape.SessionEvent) *tapepb.EventRecord {
	return &tapepb.EventRecord{
		Id: e.ID, InvocationId: e.Invocation, Author: e.Author, Branch: e.Branch,
		ContentJson: e.Content, ActionsJson: e.Actions, TimestampMs: millis(e.Time),
	}
}
