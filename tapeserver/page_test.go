package tapeserver

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// stuckStream is a stream whose client reads nothing.
type stuckStream struct {
	grpc.ServerStream
	gone chan struct{}
}

func (s *stuckStream) SendMsg(any) error {
	<-s.gone
	return io.EOF
}

// A stream is not ended for the time that its own store takes, but for that of its client.
func TestAPageIsLateFromItsFirstMessageOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(memory.New(nil).Open(), &Options{NoMatcher: true, Limits: Limits{SendTimeout: time.Minute}})
		c := &call{s: s, ctx: t.Context(), conn: &conn{bytes: semaphore.NewWeighted(1 << 30)}, client: s.clients.enter("client"), late: make(chan struct{}, 1)}
		client := &stuckStream{gone: make(chan struct{})}
		defer close(client.gone)
		stream := &admittedStream{ServerStream: client, call: c}
		end, err := beginPage(stream.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		time.Sleep(time.Hour) // the store reads the page
		synctest.Wait()
		if len(c.late) > 0 {
			t.Fatal("the client is late before anything was sent to it")
		}
		began := time.Now()
		go func() { _ = stream.SendMsg(&tapepb.GetRunRequest{}) }()
		<-c.late
		if took := time.Since(began); took != time.Minute {
			t.Errorf("late after %v, want a minute", took)
		}
	})
}
