package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/matcher"
)

// matcherPages is 8: how many pages of the feed the server's matcher has in memory, of 4 MiB each at most. They do
// not count under Limits.BytesInFlight, which bounds what clients make the server hold.
const matcherPages = 8

// newMatcher returns the matcher of the server's store; nil if the server is to have none.
func (s *Server) newMatcher() *matcher.Matcher {
	if s.opts.NoMatcher {
		return nil
	}
	m, err := matcher.New(s.tape, s.tail, &matcher.Options{TTL: s.opts.MatcherTTL, Logger: s.opts.Logger})
	if err != nil {
		panic(err) // the server sets no option that could be refused
	}
	return m
}

// startMatcher runs the matcher until ctx ends, and closes the channel when it has released its leases.
func (s *Server) startMatcher(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	if s.matcher == nil {
		close(ended)
		return ended
	}
	go func() {
		defer close(ended)
		s.matcher.Run(ctx)
	}()
	return ended
}

// reactionsChanged makes the matcher list the reactions.
func (s *Server) reactionsChanged() {
	if s.matcher != nil {
		s.matcher.Wake()
	}
}

// admitPage waits for room for a page of the tail: that of the stream which asks, or the matcher's.
func (s *Server) admitPage(ctx context.Context) (release func(), err error) {
	if _, stream := ctx.Value(streamKey{}).(*admittedStream); stream {
		return beginPage(ctx, listReply)
	}
	select {
	case s.matcherPages <- struct{}{}:
		return func() { <-s.matcherPages }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
