package alloydb_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/runstore/alloydb"
)

// A server that refuses everybody gets a new connector to see only when it has done so
// for long, and then ever more rarely.
func TestNewConnectorsAreFew(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	const pace, refusedFor, before = 2 * time.Minute, 10 * time.Minute, 90 * time.Second // the test takes less than that
	c, err := alloydb.NewConnector(t.Context(), s.Instance(), pace, refusedFor, s.DialerOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dial := func() error {
		conn, err := c.Dial(t.Context())
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	s.RefuseConnections("the instance is being restarted")
	var passed time.Duration
	for _, step := range []struct {
		at   time.Duration // since the first refusal
		want int           // certificates so far, of which each connector needs one
	}{
		{0, 1},
		{refusedFor - before, 1},
		{refusedFor, 2}, // refused for long enough: the next one comes after 2 minutes
		{refusedFor + pace - before, 2},
		{refusedFor + pace, 3}, // after 4
		{refusedFor + 3*pace - before, 3},
		{refusedFor + 3*pace, 4}, // after 8
		{refusedFor + 7*pace - before, 4},
		{refusedFor + 7*pace, 5},
	} {
		c.Pass(step.at - passed)
		passed = step.at
		for range 2 {
			if err := dial(); err == nil || !strings.Contains(err.Error(), "being restarted") {
				t.Fatalf("dial after %v: %v, want the reason", step.at, err)
			}
		}
		if got := s.Stats().Certificates; got != step.want {
			t.Errorf("refused for %v: got %d certificates, want %d", step.at, got, step.want)
		}
	}
	s.RefuseConnections("")
	if err := dial(); err != nil {
		t.Error(err)
	}
}

// Concurrent dials while the certificate is refused share one new connector.
func TestNewConnectorIsShared(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	c, err := alloydb.NewConnector(t.Context(), s.Instance(), time.Hour, time.Hour, s.DialerOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, ahead := range []time.Duration{0, 2 * time.Hour} {
		s.SkewClock(ahead)
		var dials sync.WaitGroup
		for range 8 {
			dials.Go(func() {
				conn, err := c.Dial(t.Context())
				if err != nil {
					t.Errorf("clock %v ahead: %v", ahead, err)
					return
				}
				_ = conn.Close()
			})
		}
		dials.Wait()
	}
	if got := s.Stats().Certificates; got != 2 {
		t.Errorf("%d certificates, want 2", got)
	}
	s.SkewClock(4 * time.Hour) // within the hour that is to lie between two
	if _, err := c.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "is the clock of this machine right?") {
		t.Errorf("dial: %v, want the refusal and what to look at", err)
	}
}

// A dial ends with its context, whatever the network does, and Close does not wait for
// what hangs.
func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := standIn(t)
	thaw := make(chan struct{})
	defer close(thaw)
	stuck := alloydbconn.WithDialFunc(func(context.Context, string, string) (net.Conn, error) {
		<-thaw
		return nil, errors.New("too late")
	})
	c, err := alloydb.NewConnector(t.Context(), s.Instance(), time.Hour, time.Hour, append(s.DialerOptions(), stuck)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Dial(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v, want the context's end", err)
	}
	c.Close()
	if _, err := c.Dial(t.Context()); !errors.Is(err, alloydbconn.ErrDialerClosed) {
		t.Errorf("dial after Close: %v, want ErrDialerClosed", err)
	}
}
