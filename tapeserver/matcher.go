package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/matcher"
)

// matcherPages is 8: the number of pages of the feed, of at most 4 MiB each, that the server's
// matcher holds in memory. They do not count under Limits.BytesInFlight, which bounds what clients
// make the server hold.
const matcherPages = 8

// newMatcher returns the matcher of the server's store; nil with Options.NoMatcher.
func (s *Server) newMatcher() *matcher.Matcher {
	if s.opts.NoMatcher {
		return nil
	}
	m, err := matcher.New(s.tape, s.tail, &matcher.Options{TTL: s.opts.MatcherTTL, Heartbeat: s.opts.MatcherHeartbeat, MeterProvider: s.opts.MeterProvider, Logger: s.opts.Logger})
	if err != nil {
		panic(err) // Options.MatcherHeartbeat does not fit; New could refuse no other option
	}
	return m
}

// startMatcher runs the matcher until ctx ends. The returned channel is closed when it has released
// its leases.
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

// reactionsChanged makes the matcher list the reactions soon.
func (s *Server) reactionsChanged() {
	if s.matcher != nil {
		s.matcher.Wake()
	}
}

// admitPage waits for room for a page of the tail, on behalf of the stream that asks or of the
// matcher.
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

// tryAdmitPage is admitPage without waiting. It reports false if there is no room.
func (s *Server) tryAdmitPage(ctx context.Context) (release func(), ok bool) {
	if st, stream := ctx.Value(streamKey{}).(*admittedStream); stream {
		end, err := st.beginPage(listReply, 0)
		return end, err == nil
	}
	select {
	case s.matcherPages <- struct{}{}:
		return func() { <-s.matcherPages }, true
	default:
		return nil, false
	}
}
