package tapeserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// valueRequest is a request that names a value.
type valueRequest interface {
	GetNamespace() string
	GetKey() string
}

func valueKey(req valueRequest) tape.ValueKey {
	return tape.ValueKey{Namespace: req.GetNamespace(), Key: req.GetKey()}
}

func (s *service) WriteValue(ctx context.Context, req *tapepb.WriteValueRequest) (*tapepb.ValueRecord, error) {
	fence, err := s.valueFence(ctx, req)
	if err != nil {
		return nil, statusOf(err)
	}
	at := max(runstore.Version(req.GetIfVersion()), tape.AnyVersion)
	written, err := s.tape.WriteValue(ctx, valueKey(req), req.GetValueJson(), req.GetWriter(), at, fence)
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	return value(written), nil
}

func (s *service) GetValue(ctx context.Context, req *tapepb.GetValueRequest) (*tapepb.GetValueResponse, error) {
	found, ok, err := s.tape.GetValue(ctx, valueKey(req))
	if err != nil {
		return nil, statusOf(err)
	}
	if !ok {
		return &tapepb.GetValueResponse{}, nil
	}
	return &tapepb.GetValueResponse{Found: !found.Deleted, Value: value(found)}, nil
}

func (s *service) DeleteValue(ctx context.Context, req *tapepb.DeleteValueRequest) (*tapepb.DeleteValueResponse, error) {
	fence, err := s.valueFence(ctx, req)
	if err != nil {
		return nil, statusOf(err)
	}
	deleted, found, err := s.tape.DeleteValue(ctx, valueKey(req), fence)
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	return &tapepb.DeleteValueResponse{Deleted: found, Version: int64(deleted.Version)}, nil
}

// WatchValue sends every version of a value above from_version, each once and in order with its
// predecessor, and continues with new ones until the client goes away or the server drains. It
// sends nothing for a value that was never written.
func (s *service) WatchValue(req *tapepb.WatchValueRequest, stream grpc.ServerStreamingServer[tapepb.ValueEvent]) error {
	ctx, key := stream.Context(), valueKey(req)
	if err := key.Check(); err != nil {
		return statusOf(err)
	}
	// Clients wait for the headers before they cause the events that they watch for.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	from := max(req.GetFromVersion(), 0)
	var before tape.Value
	for events, err := range s.tail.Follow(ctx, key.Run(), runstore.Seq(from)) { // a version is a seq
		if err != nil {
			return s.streamEnd(ctx, err)
		}
		for _, e := range events {
			v, err := tape.ValueOf(e)
			if err != nil {
				return statusOf(err)
			}
			if int64(v.Version) > from {
				event := &tapepb.ValueEvent{Value: value(v), PrevVersion: int64(before.Version), PrevValueJson: before.JSON}
				if err := stream.Send(event); err != nil {
					return err
				}
			}
			before = v
		}
	}
	return nil
}

func value(v tape.Value) *tapepb.ValueRecord {
	return &tapepb.ValueRecord{
		Namespace: v.Namespace, Key: v.Key, ValueJson: v.JSON, Version: int64(v.Version), TsMs: millis(v.Updated),
		Writer: v.Writer, Deleted: v.Deleted,
	}
}
