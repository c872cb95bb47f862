package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// idleStreams are clients that follow idle runs while other clients write.
type idleStreams struct {
	server  *protocolServer
	clients []tapepb.TapeClient // each on its own connection
	quiet   []*protocolRun      // followed runs, to which nothing is written
	written []*protocolRun      // runs that the writers write to
	streams int                 // open streams in a round
	opened  int                 // in all rounds
}

// measureStreams compares the server with and without idle streams, under the given number of
// writers.
func (s *Session) measureStreams(ctx context.Context, server *protocolServer, store runstore.RunStore, writers int) error {
	var clients []tapepb.TapeClient
	for range max(writers, (s.Scale.Streams+streamsPerConnection-1)/streamsPerConnection) {
		client, err := server.dial()
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	var written []*protocolRun
	for i := range writers {
		run, err := server.begin(ctx, clients[i], fmt.Sprint("written ", i))
		if err != nil {
			return err
		}
		written = append(written, run)
	}
	quiet := make([]*protocolRun, s.Scale.Streams)
	made, err := fill(ctx, s.Scale.Fill, s.fillers(), len(quiet), func(ctx context.Context, i int) (err error) {
		quiet[i], err = server.begin(ctx, clients[i/streamsPerConnection], fmt.Sprint("quiet ", i))
		return err
	})
	if err != nil {
		return err
	}
	if made < len(quiet) {
		s.Note(s.Target.System.Name, "of %d runs for idle streams %d were begun in %v", len(quiet), made, s.Scale.Fill)
	}
	quiet = quiet[:made]

	var sides []Side
	for _, wanted := range []int{0, s.Scale.Streams} {
		n := min(wanted, made)
		// The sides write to the same runs, one after the other.
		streams := &idleStreams{server: server, clients: clients, quiet: quiet, written: written, streams: n}
		side := Side{
			Group: "idle streams", System: s.Target.System.Name, Side: strconv.Itoa(wanted) + " idle streams",
			Params: map[string]string{"streams": strconv.Itoa(wanted), "clients": strconv.Itoa(writers)}, Reached: &Size{n, "streams"}, Round: streams.round,
			Verify: func(ctx context.Context) (string, error) {
				found, err := checkRuns(ctx, store, written)
				return fmt.Sprintf("%s; %d streams received what was in the journals, and nothing else", found, streams.opened), err
			},
		}
		if n > 0 {
			side.Over = map[string]int{"of the rate without": 0}
		}
		sides = append(sides, side)
	}
	return s.Compare(ctx, sides...)
}

// round opens the idle streams, and measures the writers' rate and the cost of the server at rest.
func (p *idleStreams) round(ctx context.Context, d time.Duration, m *Measured) error {
	closeStreams, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer closeStreams()
	write := func(ctx context.Context, i int) error {
		r := p.written[i]
		return r.decide(ctx, int64(len(r.kinds)))
	}
	// These writes also bring the followers past the pace of a server that has just started.
	if _, err := Drive(ctx, len(p.written), d, write); err != nil {
		return err
	}
	own, ofRPCs, cpu, began := p.server.calls.own.Load(), p.server.calls.ofRPCs.Load(), cpuTime(), time.Now()
	if err := sleep(ctx, d); err != nil {
		return err
	}
	idle := time.Since(began).Seconds()
	calls := p.server.calls.own.Load() - own + p.server.calls.ofRPCs.Load() - ofRPCs
	m.Add("store calls at rest", "calls/s", Less, float64(calls)/idle)
	m.Add("CPU at rest", "cores", Less, (cpuTime()-cpu).Seconds()/idle)

	own, ofRPCs = p.server.calls.own.Load(), p.server.calls.ofRPCs.Load()
	load, err := Drive(ctx, len(p.written), d, write)
	if err != nil {
		return err
	}
	m.Add(Rate, "decisions/s", More, load.PerSecond())
	m.Quantiles("decision", load.Latencies)
	m.Add("store calls per decision", "", Less, float64(p.server.calls.own.Load()-own+p.server.calls.ofRPCs.Load()-ofRPCs)/float64(load.Done))
	return closeStreams()
}

// open opens the streams and waits until each has received its run's journal. closeAll closes them,
// and reports what a stream received beyond that.
func (p *idleStreams) open(ctx context.Context) (closeAll func() error, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var open, ended sync.WaitGroup
	for i, run := range p.quiet[:p.streams] {
		open.Add(1)
		ended.Go(func() {
			opened := sync.OnceFunc(open.Done)
			defer opened()
			stream, err := p.clients[i/streamsPerConnection].SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: run.id})
			for seq := int64(1); err == nil; seq++ {
				if seq > int64(len(run.kinds)) {
					opened()
				}
				var e *tapepb.JournalEntry
				if e, err = stream.Recv(); err == nil && (e.GetSeq() != seq || seq > int64(len(run.kinds))) {
					err = fmt.Errorf("the stream of run %s sent entry %d of %d", run.id, e.GetSeq(), len(run.kinds))
				}
			}
			cancel(err) // only the first cause counts
		})
	}
	lost := time.AfterFunc(feedTimeout, func() { cancel(errors.New("a stream did not receive its run's journal")) })
	open.Wait()
	lost.Stop()
	p.opened += p.streams
	closed := errors.New("the streams are closed")
	closeAll = sync.OnceValue(func() error {
		cancel(closed)
		ended.Wait()
		if cause := context.Cause(ctx); cause != closed {
			return cause
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, closeAll()
	}
	return closeAll, nil
}
