package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// protocolPart measures the server of the wire protocol.
func protocolPart() Part {
	return Part{
		Name: "protocol", Title: "Wire protocol", Run: measureProtocol,
		Doc: `A server over the store, on loopback, in the process of its clients. Each client has a connection and a run of its own, and ` +
			`presents its fence in every write. Store calls are counted between the server and the store. A side without and one ` +
			`with idle streams take turns: both let the server rest for a slice of time and count its store calls and the CPU time of the process, ` +
			`then measure the decisions that the clients record. What the RPCs acknowledged is read back from the journals. ` +
			`Subscribers of the feed of all runs (SubscribeBySubject) select the decisions of one run: one subscriber, many at rest, and many beside a ` +
			`client that writes to another run as fast as it can. The delay is from a decision's acknowledgement to its delivery to each of them. ` +
			`Matching: entries are written first, each for one of many reactions, and then servers match all reactions with all of them. At first there is one server, ` +
			`which is killed at its first commit; then there are two, of which the older is killed, three TTLs of a lease after the one before, at its next commit: before the store has it, or before ` +
			`the server has the reply. Killed, it reaches the store no more, its leases expire, and another server takes its place. Meanwhile workers claim the tasks. ` +
			`The rate is that of entries from the start of the first server until the last task was claimed; an entry without a task, or one whose task can be claimed twice, fails the run. ` +
			`Claims: workers claim the tasks of one reaction, one by each request, over one server and over two on the same store, and complete them between the rounds. The attempts are the commits that the servers ask for to claim.`,
	}
}

// streamsPerConnection is how many idle streams share a connection.
const streamsPerConnection = 50

func measureProtocol(ctx context.Context, s *Session) error {
	return errors.Join(
		s.WithStore(ctx, func(store Store) error { return s.measureServer(ctx, store) }),
		s.WithStore(ctx, func(store Store) error { return s.measureMatching(ctx, store) }),
		s.WithStore(ctx, func(store Store) error { return s.measureClaims(ctx, store) }),
	)
}

// protocolSteps is the number of the part's measurements, for its progress.
const protocolSteps = 5

// measureServer measures one server under requests of its clients.
func (s *Session) measureServer(ctx context.Context, store Store) (err error) {
	s.Step(0, protocolSteps, "RPCs")
	handle, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	server, err := serve(handle, store.Prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	clients := s.withinLimits("clients", s.Scale.Clients)
	if err := s.measureRPCs(ctx, server, handle, clients); err != nil {
		return err
	}
	s.Step(1, protocolSteps, "idle streams")
	if err := s.measureStreams(ctx, server, handle, clients[len(clients)-1]); err != nil {
		return err
	}
	s.Step(2, protocolSteps, "subscribers of the feed")
	return s.measureFeed(ctx, server, handle)
}

// protocolServer is a server over a store, and the connections to it.
type protocolServer struct {
	address string
	calls   *storeCalls
	prefix  string
	end     context.CancelFunc
	ended   chan error
	conns   []*grpc.ClientConn
}

func serve(store runstore.RunStore, prefix string) (*protocolServer, error) {
	return serveWith(store, prefix, tapeserver.Options{})
}

// serveWith serves a store with the given server options. The server's log is discarded.
func serveWith(store runstore.RunStore, prefix string, opts tapeserver.Options) (*protocolServer, error) {
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Limits.HandshakeTimeout = 5 * time.Minute // many clients connect at once, on a machine that measures
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	counted, calls := countCalls(store)
	ctx, cancel := context.WithCancel(context.Background())
	p := &protocolServer{address: lis.Addr().String(), calls: calls, prefix: prefix, end: cancel, ended: make(chan error, 1)}
	server := tapeserver.New(counted, &opts)
	go func() { p.ended <- server.Serve(ctx, lis) }()
	return p, nil
}

// dial returns a client with a connection of its own. stop closes it.
func (p *protocolServer) dial() (tapepb.TapeClient, error) {
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	p.conns = append(p.conns, conn)
	return tapepb.NewTapeClient(conn), nil
}

// stop closes the connections and ends the server.
func (p *protocolServer) stop() (err error) {
	for _, conn := range p.conns {
		err = errors.Join(err, conn.Close())
	}
	p.end()
	return errors.Join(err, <-p.ended)
}

// protocolRun is a run that one client drives.
type protocolRun struct {
	client tapepb.TapeClient
	id     string
	fence  *tapepb.Fence
	kinds  []string // kinds of the journal's entries, as acknowledged
}

// begin begins a run of the given name. The beginning is the journal's first entry.
func (p *protocolServer) begin(ctx context.Context, client tapepb.TapeClient, name string) (*protocolRun, error) {
	r, err := client.BeginRun(ctx, &tapepb.BeginRunRequest{
		AppName: p.prefix, UserId: "bench", SessionId: "bench", InvocationId: name,
		LeaseOwner: "bench", LeaseTtlMs: runstore.MaxTTL.Milliseconds(), Scopes: []string{"bench"},
	})
	if err != nil {
		return nil, err
	}
	if r.GetResumed() || r.GetGrant() == nil {
		return nil, fmt.Errorf("BeginRun answered %v", r)
	}
	run := &protocolRun{client: client, id: r.GetRunId(), fence: &tapepb.Fence{
		Owner: r.Grant.GetOwner(), Token: r.Grant.GetToken(), GrantId: r.Grant.GetGrantId(), RunId: r.Grant.GetRunId(),
	}, kinds: []string{"run"}}
	return run, nil
}

// check compares a run's journal with the acknowledged entries.
func (r *protocolRun) check(ctx context.Context, store runstore.RunStore) error {
	seq := 0
	for e, err := range runstore.Journal(ctx, store, runstore.RunID(r.id), 1) {
		if err != nil {
			return err
		}
		if seq++; int(e.Seq) != seq || seq > len(r.kinds) || e.Kind != r.kinds[seq-1] {
			return fmt.Errorf("entry %d of run %s has seq %d and kind %q; %d were acknowledged", seq, r.id, e.Seq, e.Kind, len(r.kinds))
		}
	}
	if seq != len(r.kinds) {
		return fmt.Errorf("the journal of run %s ends at %d; %d entries were acknowledged", r.id, seq, len(r.kinds))
	}
	return nil
}

// checkRuns compares the journals of runs with the acknowledged entries.
func checkRuns(ctx context.Context, store runstore.RunStore, runs []*protocolRun) (string, error) {
	entries := 0
	for _, r := range runs {
		entries += len(r.kinds)
	}
	_, err := fill(ctx, runstore.MaxTTL, fillers, len(runs), func(ctx context.Context, i int) error { return runs[i].check(ctx, store) })
	return fmt.Sprintf("%d entries in the journals of %d runs", entries, len(runs)), err
}
