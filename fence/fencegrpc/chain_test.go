package fencegrpc_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/runstore"
)

// A service that is refused by another one forwards the status. Its caller is fenced only if the
// refused fence is the caller's own.
func TestForwardedRefusal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		caller, onward fence.Presented // a zero caller presents no fence
		fenced         bool
	}{
		{"of another token", fence.Presented{Resource: "a", Token: 9}, fence.Presented{Resource: "a", Token: 5}, false},
		{"of another resource", fence.Presented{Resource: "a", Token: 5}, fence.Presented{Resource: "b", Token: 5}, false},
		{"to a caller without a fence", fence.Presented{}, fence.Presented{Resource: "a", Token: 5}, false},
		{"of the caller's fence", fence.Presented{Resource: "a", Token: 5}, fence.Presented{Resource: "a", Token: 5}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checker := newMemory(t)
			if err := checker.Check(t.Context(), test.onward.Resource, 6); err != nil {
				t.Fatal(err)
			}
			second := serve(t, new(bank), checker, nil)
			first := &bank{before: func(ctx context.Context) error {
				err := second.pay(fencegrpc.WithFence(ctx, test.onward.Resource, test.onward.Token), "payee")
				wantFenced(t, err, fence.StaleError{Resource: test.onward.Resource, Presented: test.onward.Token, Current: 6})
				return err
			}}
			c := serve(t, first, newMemory(t), &fencegrpc.Options{Unfenced: func(string) bool { return true }})
			ctx := t.Context()
			if test.caller.Token != 0 {
				ctx = fencegrpc.WithFence(ctx, test.caller.Resource, test.caller.Token)
			}
			for _, err := range []error{c.pay(ctx, "payee"), c.payOne(ctx, "payee")} {
				if status.Code(err) != codes.FailedPrecondition || reason(status.Convert(err)) != "FENCED" || errors.Is(err, runstore.ErrFenced) != test.fenced {
					t.Errorf("got %v, ErrFenced %v; want the forwarded status, ErrFenced %v", err, !test.fenced, test.fenced)
				}
			}
		})
	}
}

// renaming is a checker that names resources otherwise than its callers do.
type renaming struct{ fence.Checker }

func (c renaming) Check(ctx context.Context, resource string, token runstore.Token) error {
	return c.Checker.Check(ctx, "tenant/"+resource, token)
}

// A refusal states what the caller presented, however the checker names it.
func TestRefusalByARenamingChecker(t *testing.T) {
	t.Parallel()
	checker := renaming{newMemory(t)}
	if err := checker.Check(t.Context(), "a", 6); err != nil {
		t.Fatal(err)
	}
	c := serve(t, new(bank), checker, nil)
	ctx := fencegrpc.WithFence(t.Context(), "a", 5)
	for _, err := range []error{c.pay(ctx, "payee"), c.payOne(ctx, "payee")} {
		wantFenced(t, err, fence.StaleError{Resource: "a", Presented: 5, Current: 6})
	}
}

// A server that does not state the fence that it refused, or that accepts a malformed one, refuses
// the caller all the same.
func TestRefusalWithoutFacts(t *testing.T) {
	t.Parallel()
	const token, resource = fencegrpc.TokenKey, fencegrpc.ResourceKey
	for _, test := range []struct {
		name   string
		pairs  []string
		facts  map[string]string
		fenced bool
	}{
		{"none", []string{token, "5", resource, "a"}, nil, true},
		{"token", []string{token, "5", resource, "a"}, map[string]string{"presented": "5"}, true},
		{"another token", []string{token, "5", resource, "a"}, map[string]string{"presented": "6"}, false},
		{"resource", []string{token, "5", resource, "a"}, map[string]string{"resource": "a"}, true},
		{"another resource", []string{token, "5", resource, "a"}, map[string]string{"resource": "b"}, false},
		{"of a malformed fence", []string{token, "5", token, "5", resource, "a"}, map[string]string{"presented": "5", "resource": "a"}, true},
		{"of no fence", nil, nil, false},
	} {
		s, err := status.New(codes.FailedPrecondition, "message").WithDetails(&errdetails.ErrorInfo{Domain: fencegrpc.Domain, Reason: "FENCED", Metadata: test.facts})
		if err != nil {
			t.Fatal(err)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), test.pairs...)
		unary := fencegrpc.UnaryClientInterceptor()(ctx, payMethod, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return s.Err()
		})
		_, stream := fencegrpc.StreamClientInterceptor()(ctx, nil, nil, payAllMethod, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, s.Err()
		})
		for _, err := range []error{unary, stream} {
			if errors.Is(err, runstore.ErrFenced) != test.fenced || status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%s: got %v, ErrFenced %v; want %v", test.name, err, !test.fenced, test.fenced)
			}
		}
	}
}
