package spanner

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

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// decodedServices are the services whose requests are decoded. All others are passed on unread.
var decodedServices = []string{"google.spanner.v1.Spanner", "google.spanner.admin.database.v1.DatabaseAdmin"}

// decode decodes a request. It returns nil for a request that is passed on unread.
func decode(method string, frame grpcproxy.Frame) (proto.Message, error) {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	service = strings.TrimSuffix(service, "/")
	if !slices.Contains(decodedServices, service) {
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

// databaseOf returns the full name of the database that a request concerns, or "".
func databaseOf(req proto.Message) string {
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

// statement is a request that may name a transaction.
type statement interface {
	proto.Message
	GetSession() string
	GetTransaction() *spannerpb.TransactionSelector
}

// transactionOf returns the id of the request's transaction, or nil.
func transactionOf(req proto.Message) []byte {
	switch req := req.(type) {
	case statement:
		return req.GetTransaction().GetId()
	case interface{ GetTransactionId() []byte }: // to commit and to roll back
		return req.GetTransactionId()
	}
	return nil
}

// shallow returns a shallow copy of a message, of which only the direct fields may be changed.
// Requests are shared with the tests' fault functions, and may be large.
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

// outgoing returns the context for a call to the emulator on behalf of a client: ctx with
// the metadata that Google's services read, and nothing of the client's connection.
func outgoing(ctx, client context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(client)
	out := metadata.MD{}
	for key, values := range md {
		if strings.HasPrefix(key, "google-") || strings.HasPrefix(key, "x-goog-") {
			out[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// aborted returns the service's ABORTED with RetryInfo, which says when to rerun the
// transaction. The emulator sends the delay in a trailer that clients ignore; they would then back
// off longer and longer.
func aborted(format string, args ...any) error {
	const least, most = time.Millisecond, 8 * time.Millisecond // random, so that the same transactions do not collide again
	s := status.Newf(codes.Aborted, format, args...)
	delay := least + rand.N(most-least)
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}); err == nil {
		s = detailed
	}
	return s.Err()
}
