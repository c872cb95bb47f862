package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// feedSubscribers are clients that subscribe to the feed of all runs and select the decisions of
// one run.
type feedSubscribers struct {
	server  *protocolServer
	store   runstore.RunStore
	clients []tapepb.TapeClient // each on its own connection
	marked  *protocolRun        // the run whose decisions are selected
	busy    *protocolRun        // another run, to which another client writes
	streams int                 // open streams in a round
	least   int                 // minimum number of decisions in a round

	delivered int // in all rounds
}

// measureFeed measures one subscriber of the feed, idle subscribers, and subscribers beside a busy
// writer.
func (s *Session) measureFeed(ctx context.Context, server *protocolServer, store runstore.RunStore) error {
	f := feedSubscribers{server: server, store: store, least: max(1, s.Scale.Handovers)}
	for range (s.Scale.Streams + streamsPerConnection - 1) / streamsPerConnection {
		client, err := server.dial()
		if err != nil {
			return err
		}
		f.clients = append(f.clients, client)
	}
	writer, err := server.dial()
	if err != nil {
		return err
	}
	if f.marked, err = server.begin(ctx, writer, "marked"); err != nil {
		return err
	}
	if f.busy, err = server.begin(ctx, writer, "busy"); err != nil {
		return err
	}
	var sides []Side
	for _, side := range []struct {
		name    string
		streams int
		round   func(*feedSubscribers) func(context.Context, time.Duration, *Measured) error
	}{
		{"1 subscriber", 1, func(f *feedSubscribers) func(context.Context, time.Duration, *Measured) error { return f.alone }},
		{"idle subscribers", s.Scale.Streams, func(f *feedSubscribers) func(context.Context, time.Duration, *Measured) error { return f.idle }},
		{"subscribers beside a busy writer", s.Scale.Streams, func(f *feedSubscribers) func(context.Context, time.Duration, *Measured) error { return f.beside }},
	} {
		of := f // the sides share the runs
		of.streams = side.streams
		sides = append(sides, Side{
			Group: "feed", System: s.Target.System.Name, Side: side.name,
			Params: map[string]string{"subscribers": strconv.Itoa(side.streams)}, Round: side.round(&of),
			Verify: func(ctx context.Context) (string, error) {
				found, err := checkRuns(ctx, store, []*protocolRun{of.marked, of.busy})
				return fmt.Sprintf("%s; %d deliveries: every subscriber received each selected decision once and in order", found, of.delivered), err
			},
		})
	}
	return s.Compare(ctx, sides...)
}

// alone measures the delivery delay of one subscriber on an idle server.
func (f *feedSubscribers) alone(ctx context.Context, d time.Duration, m *Measured) error {
	feed, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer feed.close()
	if err := f.write(ctx, feed, d); err != nil {
		return err
	}
	delays, err := feed.wait(ctx)
	if err != nil {
		return err
	}
	m.Quantiles("delay", delays)
	return feed.close()
}

// idle measures the cost of subscribers on an idle server.
func (f *feedSubscribers) idle(ctx context.Context, d time.Duration, m *Measured) error {
	heap := reachable()
	feed, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer feed.close()
	if err := f.decide(ctx, feed); err != nil { // afterwards all subscribers are at the end of the feed
		return err
	}
	if _, err := feed.wait(ctx); err != nil {
		return err
	}
	m.Add("heap per subscriber, with its client", "bytes", Less, float64(reachable()-heap)/float64(f.streams))
	calls := f.server.calls
	before, feeds, cpu, began := calls.own.Load()+calls.ofRPCs.Load(), calls.feeds.Load(), cpuTime(), time.Now()
	if err := sleep(ctx, 4*d); err != nil { // several reads of an idle reader
		return err
	}
	rested := time.Since(began).Seconds()
	m.Add("CPU at rest", "cores", Less, (cpuTime()-cpu).Seconds()/rested)
	m.Add("store calls at rest", "calls/s", Less, float64(calls.own.Load()+calls.ofRPCs.Load()-before)/rested)
	m.Add("reads of the feed at rest", "reads/s", Less, float64(calls.feeds.Load()-feeds)/rested)
	return feed.close()
}

// beside measures subscribers while a client writes to another run.
func (f *feedSubscribers) beside(ctx context.Context, d time.Duration, m *Measured) error {
	feed, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer feed.close()
	reads := f.server.calls.feeds.Load()
	busy := make(chan error, 1)
	var load Load
	go func() {
		var err error
		load, err = Drive(ctx, 1, d, func(ctx context.Context, _ int) error { return f.busy.decide(ctx, int64(len(f.busy.kinds))) })
		busy <- err
	}()
	err = f.write(ctx, feed, d)
	if err := errors.Join(err, <-busy); err != nil {
		return err
	}
	delays, err := feed.wait(ctx)
	if err != nil {
		return err
	}
	m.Add(Rate, "decisions/s", More, load.PerSecond())
	m.Quantiles("delay", delays)
	m.Add("reads of the feed", "reads/s", Less, float64(f.server.calls.feeds.Load()-reads)/time.Since(feed.opened).Seconds())
	return feed.close()
}

// write records selected decisions, with pauses between them, for about d.
func (f *feedSubscribers) write(ctx context.Context, feed *openFeed, d time.Duration) error {
	began := time.Now()
	for n := 0; n < f.least || time.Since(began) < d; n++ {
		if err := sleep(ctx, rand.N(20*time.Millisecond)); err != nil {
			return err
		}
		if err := f.decide(ctx, feed); err != nil {
			return err
		}
	}
	return nil
}

func (f *feedSubscribers) decide(ctx context.Context, feed *openFeed) error {
	err := f.marked.decide(ctx, int64(len(f.marked.kinds)))
	feed.acknowledged = append(feed.acknowledged, time.Now())
	return err
}

// openFeed records what the subscribers of one round receive.
type openFeed struct {
	of           *feedSubscribers
	ctx          context.Context
	cancel       context.CancelCauseFunc
	ended        sync.WaitGroup
	opened       time.Time
	acknowledged []time.Time // when each decision was acknowledged

	mu       sync.Mutex
	arrived  [][]time.Time // by subscriber
	received int
	awaited  int // -1 until it is known
	complete chan struct{}
}

var errFeedClosed = errors.New("the subscribers are closed")

// open opens the streams after the acknowledged decisions, and waits for their headers.
func (f *feedSubscribers) open(ctx context.Context) (*openFeed, error) {
	last, err := f.store.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil {
		return nil, err
	}
	from := int64(0)
	if len(last) > 0 {
		from = int64(last[0].Position)
	}
	feed := &openFeed{of: f, arrived: make([][]time.Time, f.streams), awaited: -1, complete: make(chan struct{})}
	feed.ctx, feed.cancel = context.WithCancelCause(ctx)
	lost := time.AfterFunc(feedTimeout, func() { feed.cancel(errors.New("a stream did not open")) })
	defer lost.Stop()
	var open sync.WaitGroup
	seen := int64(len(f.marked.kinds)) // the feed may lag behind the journal
	for i := range f.streams {
		open.Add(1)
		feed.ended.Go(func() {
			opened := sync.OnceFunc(open.Done)
			defer opened()
			feed.cancel(feed.subscribe(i, from, seen, opened)) // only the first cause counts
		})
	}
	open.Wait()
	feed.opened = time.Now()
	if feed.ctx.Err() != nil {
		return nil, feed.close()
	}
	return feed, nil
}

// subscribe receives the decisions of the selected run after seq seen.
func (o *openFeed) subscribe(i int, from, seen int64, opened func()) error {
	run := o.of.marked.id
	stream, err := o.of.clients[i/streamsPerConnection].SubscribeBySubject(o.ctx, &tapepb.SubscribeBySubjectRequest{
		SubjectPattern: "/tape/decision/recorded/" + run + "/*", FromGlobalSeq: from,
	})
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err != nil {
		return err
	}
	opened()
	for want, position := seen+1, from; ; {
		e, err := stream.Recv()
		at := time.Now()
		if err != nil {
			return err
		}
		if e.GetRunId() != run || e.GetGlobalSeq() <= position {
			return fmt.Errorf("a subscriber to run %s received entry %d of run %s at %d behind %d", run, e.GetSeq(), e.GetRunId(), e.GetGlobalSeq(), position)
		}
		if position = e.GetGlobalSeq(); e.GetSeq() <= seen {
			continue
		}
		if e.GetSeq() != want {
			return fmt.Errorf("a subscriber received seq %d of its run where %d belongs", e.GetSeq(), want)
		}
		want++
		o.mu.Lock()
		o.arrived[i] = append(o.arrived[i], at)
		if o.received++; o.received == o.awaited {
			close(o.complete)
		}
		o.mu.Unlock()
	}
}

// wait waits until every subscriber has received each decision, and returns the delays.
func (o *openFeed) wait(ctx context.Context) (delays []time.Duration, err error) {
	o.mu.Lock()
	if o.awaited = len(o.acknowledged) * len(o.arrived); o.received == o.awaited {
		close(o.complete)
	}
	o.mu.Unlock()
	lost := time.NewTimer(feedTimeout)
	defer lost.Stop()
	select {
	case <-o.complete:
	case <-o.ctx.Done():
		return nil, context.Cause(o.ctx)
	case <-lost.C:
		o.mu.Lock()
		defer o.mu.Unlock()
		return nil, fmt.Errorf("%d of %d deliveries in %v", o.received, o.awaited, feedTimeout)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of.delivered += o.received
	for _, arrived := range o.arrived {
		for i, at := range arrived[:min(len(arrived), len(o.acknowledged))] {
			// A subscriber may receive a decision before the writer receives its reply.
			delays = append(delays, max(0, at.Sub(o.acknowledged[i])))
		}
	}
	return delays, nil
}

// close ends the streams, and reports what a stream received beyond what was awaited.
func (o *openFeed) close() error {
	o.cancel(errFeedClosed)
	o.ended.Wait()
	if cause := context.Cause(o.ctx); cause != errFeedClosed {
		return cause
	}
	if o.awaited >= 0 && o.received != o.awaited {
		return fmt.Errorf("%d deliveries of %d decisions to %d subscribers", o.received, len(o.acknowledged), len(o.arrived))
	}
	return nil
}
