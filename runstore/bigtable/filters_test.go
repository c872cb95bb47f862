package bigtable_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore/bigtable"
)

// requests are those that a handle has sent, as text.
type requests struct {
	mu  sync.Mutex
	all []string
}

func (r *requests) add(m any) {
	if m, ok := m.(proto.Message); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, prototext.Format(m))
	}
}

// sent is a stream whose messages are listed.
type sent struct {
	grpc.ClientStream
	to *requests
}

func (s sent) SendMsg(m any) error {
	s.to.add(m)
	return s.ClientStream.SendMsg(m)
}

func (r *requests) through(o *bigtable.Options) {
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			r.add(req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := begin(ctx, desc, cc, method, opts...)
			return sent{s, r}, err
		}))
}

// No filter is a pattern, which stored bytes could be taken for, and none a condition,
// whose atomicity the service does not promise. A predicate matches one exact cell of
// the newest.
func TestFiltersAreRanges(t *testing.T) {
	t.Parallel()
	r := &requests{}
	table := newTable(t)
	s, other := open(t, table, r.through), open(t, table)
	for _, c := range costs(t, s, other) {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	bulky(t, s, "bulky")
	seal(t, s, "bulky")
	feed(t, s, 0, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	predicates := 0
	for _, text := range r.all {
		for _, bad := range []string{"regex", "condition"} {
			if strings.Contains(text, bad) {
				t.Errorf("a request has a %s:\n%.600s", bad, text)
			}
		}
		if before, _, is := strings.Cut(text, "true_mutations"); is && strings.Contains(text, "predicate_filter") && strings.Contains(before, "predicate_filter") {
			predicates++
			newest, value := strings.Index(before, "cells_per_column_limit_filter"), strings.Index(before, "value_range_filter")
			if newest < 0 || value < newest || strings.Contains(before, "interleave") {
				t.Errorf("a predicate is\n%s", before)
			}
		}
	}
	if predicates < 20 || len(r.all) < 50 {
		t.Errorf("only %d requests were seen, and %d predicates", len(r.all), predicates)
	}
}
