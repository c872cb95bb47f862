package fencegrpc_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/runstore"
)

// broken is a checker whose every check fails with err.
type broken struct{ err error }

func (b broken) Check(context.Context, string, runstore.Token) error { return b.err }

// Every error of a fence has its code and its reason, and keeps the handler from running; on a
// stream likewise.
func TestRefusals(t *testing.T) {
	t.Parallel()
	full, err := fence.NewMemory(&fence.MemoryOptions{MaxResources: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Check(t.Context(), "a", 5); err != nil {
		t.Fatal(err)
	}
	const token, resource = fencegrpc.TokenKey, fencegrpc.ResourceKey
	byPayee := &fencegrpc.Options{Resource: func(_ context.Context, _ string, m any) (string, error) {
		return m.(*wrapperspb.StringValue).GetValue(), nil
	}}
	noPayee := &fencegrpc.Options{Resource: func(context.Context, string, any) (string, error) { return "", errors.New("no such account") }}
	notThese := &fencegrpc.Options{Unfenced: func(method string) bool { return method == "/test.Bank/Read" }}
	all := &fencegrpc.Options{Unfenced: func(string) bool { return true }}
	for _, test := range []struct {
		name    string
		checker fence.Checker
		opts    *fencegrpc.Options
		pairs   []string
		code    codes.Code
		reason  string
		message string
	}{
		{"stale", full, nil, []string{token, "4", resource, "a"}, codes.FailedPrecondition, "FENCED", "has seen token 5"},
		{"stale, of another checker", broken{&runstore.FencedError{Presented: 4, Current: 5}}, nil, []string{token, "4", resource, "a"}, codes.FailedPrecondition, "FENCED", "fenced"},
		{"missing", full, nil, nil, codes.InvalidArgument, "FENCE_MISSING", "no fence"},
		{"missing of this method", full, notThese, nil, codes.InvalidArgument, "FENCE_MISSING", "no fence"},
		{"half", full, all, []string{token, "5"}, codes.InvalidArgument, "FENCE_MALFORMED", "0 times"},
		{"two resources", full, nil, []string{token, "5", resource, "a", resource, "b"}, codes.InvalidArgument, "FENCE_MALFORMED", "2 times"},
		{"token", full, nil, []string{token, "five", resource, "a"}, codes.InvalidArgument, "FENCE_MALFORMED", "decimal"},
		{"token beyond all", full, nil, []string{token, "9007199254740992", resource, "a"}, codes.InvalidArgument, "FENCE_MALFORMED", "out of range"},
		{"long resource", full, nil, []string{token, "5", resource, strings.Repeat("a", fence.MaxResource+1)}, codes.InvalidArgument, "FENCE_MALFORMED", "limit"},
		{"another resource", full, byPayee, []string{token, "5", resource, "a"}, codes.InvalidArgument, "FENCE_MALFORMED", "touches"},
		{"no resource", full, noPayee, []string{token, "5", resource, "a"}, codes.InvalidArgument, "FENCE_MALFORMED", "no such account"},
		{"full", full, nil, []string{token, "5", resource, "b"}, codes.ResourceExhausted, "FENCE_FULL", "limit is 1"},
		{"unknown", broken{runstore.ErrUnknownOutcome}, nil, []string{token, "5", resource, "a"}, codes.Unavailable, "FENCE_UNAVAILABLE", "could not be checked"},
		{"unclassified", broken{errors.New("password is hunter2")}, nil, []string{token, "5", resource, "a"}, codes.Unavailable, "FENCE_UNAVAILABLE", "could not be checked"},
		{"long message", broken{&runstore.InputError{Kind: runstore.ErrInvalid, Problem: "begin" + strings.Repeat("\u00e9\xff", 1000)}}, nil, []string{token, "5", resource, "a"}, codes.InvalidArgument, "FENCE_MALFORMED", "begin"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var reported []string
			var opts fencegrpc.Options
			if test.opts != nil {
				opts = *test.opts
			}
			opts.OnError = func(_ context.Context, method string, _ error) {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, method)
			}
			b := new(bank)
			c := serve(t, b, test.checker, &opts)
			ctx := metadata.AppendToOutgoingContext(t.Context(), test.pairs...)
			for _, err := range []error{c.pay(ctx, "payee"), c.payOne(ctx, "payee")} {
				s := status.Convert(err)
				if s.Code() != test.code || !strings.Contains(s.Message(), test.message) || strings.Contains(s.Message(), "hunter2") || len(s.Message()) > 1024 {
					t.Errorf("got %v, want %v with %q", err, test.code, test.message)
				}
				if got := reason(s); got != test.reason {
					t.Errorf("got the reason %q, want %q", got, test.reason)
				}
				if errors.Is(err, runstore.ErrFenced) != (test.reason == "FENCED") {
					t.Errorf("%v matches ErrFenced or not, contrary to its reason", err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(b.paid) != 0 || len(reported) != 2 || reported[0] != payMethod || reported[1] != payAllMethod {
				t.Errorf("paid %q, reported %q", b.paid, reported)
			}
		})
	}
}

func reason(s *status.Status) string {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == fencegrpc.Domain {
			return info.GetReason()
		}
	}
	return ""
}

// A call that has ended is reported as such.
func TestEndedCall(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs(fencegrpc.TokenKey, "5", fencegrpc.ResourceKey, "a")))
	cancel()
	_, err := fencegrpc.UnaryServerInterceptor(newMemory(t), nil)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: payMethod}, nil)
	if status.Code(err) != codes.Canceled || reason(status.Convert(err)) != "FENCE_UNAVAILABLE" {
		t.Errorf("got %v, want CANCELLED", err)
	}
}

// turning is a checker that succeeds once and then fails.
type turning struct {
	checked atomic.Bool
	err     error
}

func (c *turning) Check(context.Context, string, runstore.Token) error {
	if c.checked.Swap(true) {
		return c.err
	}
	return nil
}

// A client that resends after UNAVAILABLE must not do so once the handler may have acted.
func TestUndecidedAfterStart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{runstore.ErrUnavailable, codes.Unknown, "FENCE_UNAVAILABLE"},
		{&fence.FullError{Limit: 1}, codes.Unknown, "FENCE_FULL"},
		{&fence.StaleError{Resource: "a", Presented: 5, Current: 6}, codes.FailedPrecondition, "FENCED"},
	} {
		c := serve(t, new(bank), &turning{err: test.err}, nil)
		err := c.payOne(fencegrpc.WithFence(t.Context(), "a", 5), "payee")
		if status.Code(err) != test.code || reason(status.Convert(err)) != test.reason {
			t.Errorf("%v: got %v, want %v with %s", test.err, err, test.code, test.reason)
		}
	}
}

// Calls that may pass without a fence do, and their handlers see none.
func TestUnfenced(t *testing.T) {
	t.Parallel()
	b := new(bank)
	c := serve(t, b, broken{errors.New("is not asked")}, &fencegrpc.Options{Unfenced: func(string) bool { return true }})
	if err := errors.Join(c.pay(t.Context(), "one"), c.payOne(t.Context(), "two")); err != nil {
		t.Fatal(err)
	}
	if len(b.under) != 2 || b.under[0] != 0 || b.under[1] != 0 {
		t.Errorf("paid under %v, want no tokens", b.under)
	}
}

// The client's fence replaces one in the metadata, and any resource passes the wire.
func TestWithFence(t *testing.T) {
	t.Parallel()
	var resources []string
	b := new(bank)
	c := serve(t, b, newMemory(t), &fencegrpc.Options{Resource: func(ctx context.Context, _ string, m any) (string, error) {
		resources = append(resources, m.(*wrapperspb.StringValue).GetValue())
		return m.(*wrapperspb.StringValue).GetValue(), nil
	}})
	resource := "caf\u00e9 100%/7"
	ctx := metadata.AppendToOutgoingContext(t.Context(), fencegrpc.TokenKey, "1", fencegrpc.ResourceKey, "other", "else", "kept")
	ctx = fencegrpc.WithFence(ctx, resource, fence.MaxToken)
	if err := errors.Join(c.pay(ctx, resource), c.payOne(ctx, resource)); err != nil {
		t.Fatal(err)
	}
	if len(b.under) != 2 || b.under[0] != fence.MaxToken || b.under[1] != fence.MaxToken || len(resources) != 2 {
		t.Errorf("paid under %v on %q", b.under, resources)
	}
	bad := fencegrpc.WithFence(t.Context(), "", 1)
	if err := c.pay(bad, "x"); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if _, err := c.payAll(bad); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if _, err := c.payAll(canceled(t)); status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want CANCELLED", err)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Only the interceptors' own refusal is one, and converting it twice changes nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	with := func(code codes.Code, info *errdetails.ErrorInfo) error {
		s, err := status.New(code, "message").WithDetails(&errdetails.RetryInfo{}, info)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for name, err := range map[string]error{
		"none":           nil,
		"no status":      errors.New("no status"),
		"no details":     status.Error(codes.FailedPrecondition, "message"),
		"another domain": with(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: "tapestore", Reason: "FENCED"}),
		"another reason": with(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: fencegrpc.Domain, Reason: "FENCE_FULL"}),
		"another code":   with(codes.Aborted, &errdetails.ErrorInfo{Domain: fencegrpc.Domain, Reason: "FENCED"}),
	} {
		if got := fencegrpc.Refused(err); got != err {
			t.Errorf("%s: got %v", name, got)
		}
	}
	refused := fencegrpc.Refused(with(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: fencegrpc.Domain, Reason: "FENCED", Metadata: map[string]string{"current": "?"}}))
	wantFenced(t, refused, fence.StaleError{})
	if got := fencegrpc.Refused(refused); got != refused {
		t.Errorf("got %#v, want the same error", got)
	}
	if s, ok := status.FromError(refused); !ok || s.Message() != "message" || refused.Error() != s.Err().Error() {
		t.Errorf("got %v, want the server's status", s)
	}
}
