package emulators

import (
	"context"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tapestore/tapestore/emulators/forward"
)

// spannerServices are those whose requests are looked at. All others pass unseen.
var spannerServices = []string{"google.spanner.v1.Spanner", "google.spanner.admin.database.v1.DatabaseAdmin"}

// decodeSpanner reads a request; nil is one that passes unseen.
func decodeSpanner(method string, frame forward.Frame) (proto.Message, error) {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	service = strings.TrimSuffix(service, "/")
	if !slices.Contains(spannerServices, service) {
		return nil, nil
	}
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	described, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, nil
	}
	about := described.Methods().ByName(protoreflect.Name(name))
	if about == nil {
		return nil, nil // newer than this program
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(about.Input().FullName())
	if err != nil {
		return nil, nil
	}
	req := kind.New().Interface()
	if err := proto.Unmarshal(frame, req); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request of %s: %v", method, err)
	}
	return req, nil
}

// spannerDatabaseOf is the full name of the database that a request is about.
func spannerDatabaseOf(req proto.Message) string {
	name := ""
	switch req := req.(type) {
	case interface{ GetSession() string }:
		name = req.GetSession()
	case interface{ GetDatabase() string }:
		name = req.GetDatabase()
	case interface{ GetName() string }:
		name = req.GetName()
	}
	if !strings.Contains(name, "/databases/") {
		return ""
	}
	name, _, _ = strings.Cut(name, "/sessions/")
	return name
}

// spannerStatement is a request that names the transaction that it is for, if any.
type spannerStatement interface {
	proto.Message
	GetSession() string
	GetTransaction() *spannerpb.TransactionSelector
}

// spannerTransactionOf is the id of the transaction that a request is for, or nil.
func spannerTransactionOf(req proto.Message) []byte {
	switch req := req.(type) {
	case spannerStatement:
		return req.GetTransaction().GetId()
	case interface{ GetTransactionId() []byte }: // to commit and to roll back
		return req.GetTransactionId()
	}
	return nil
}

// shallow copies a message, but not what is in it: only its own fields may be changed.
// Requests are shared with the tests whose faults they meet, and may be large.
func shallow[M proto.Message](m M) M {
	from := m.ProtoReflect()
	to := from.New()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	to.SetUnknown(from.GetUnknown())
	return to.Interface().(M)
}

// spannerOutgoing is the context for a call to the emulator on behalf of a client's: its
// values and metadata that Google's services look at, nothing of its connection.
func spannerOutgoing(ctx, client context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(client)
	out := metadata.MD{}
	for key, values := range md {
		if strings.HasPrefix(key, "google-") || strings.HasPrefix(key, "x-goog-") {
			out[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// spannerAborted is the service's order to run a transaction again, and when. The
// emulator tells that in a trailer which clients don't read; they would wait for longer
// and longer.
func spannerAborted(format string, args ...any) error {
	const least, most = time.Millisecond, 8 * time.Millisecond // apart, or the same would meet again
	s := status.Newf(codes.Aborted, format, args...)
	delay := least + rand.N(most-least)
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}); err == nil {
		s = detailed
	}
	return s.Err()
}
