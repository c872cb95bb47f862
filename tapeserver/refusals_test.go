package tapeserver

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/tapeserver/auth"
)

// TestRefusedCallsDoNotWait checks that callers without credentials, who are over their rate, occupy no
// streams while they wait.
func TestRefusedCallsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{CallsPerSecond: 1, Streams: 3}.withDefaults()
		s := &Server{
			opts:  Options{Auth: refuseAll{}, Logger: slog.New(slog.DiscardHandler), Limits: limits},
			rates: clientlimit.NewRates(1, limits.QueueTimeout), refused: newRefusals(), drain: t.Context(),
		}
		began := time.Now()
		for range 10 {
			if _, err := s.begin(t.Context()); status.Code(err) != codes.Unauthenticated {
				t.Errorf("a call without credentials: %v", err)
			}
		}
		if d, n := time.Since(began), s.streams.Load(); d != 0 || n != 0 {
			t.Errorf("the calls took %v and left %d streams, want none", d, n)
		}
		if n := s.rates.Left(clientlimit.Network("")); n != 0 {
			t.Errorf("%v calls are left of the address's rate, want 0", n)
		}
	})
}

// refuseAll is an authenticator without principals.
type refuseAll struct{}

func (refuseAll) Authenticate(context.Context, auth.Credentials) (auth.Principal, error) {
	return auth.Principal{}, auth.ErrUnauthenticated
}
