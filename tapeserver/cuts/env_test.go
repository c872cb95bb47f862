package cuts_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// epoch is the time of the stores' clocks at the start of each case. It moves by env.advance only.
var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// env is one store, with what a case has prepared in it.
type env struct {
	t *testing.T
	// store is a handle that nothing cuts.
	store runstore.RunStore
	// advance moves the store clock.
	advance func(time.Duration)
	// timed says that the clock stands still, so that times are part of the content.
	timed bool
	// hideMulti makes the stores of later servers commit to one run at a time.
	hideMulti bool
	touched   *touched
	stops     []func()

	// clean is a client of a server that nothing cuts.
	clean tapepb.TapeClient
	// tape works on the store without a server.
	tape *tape.Tape

	// What the preparation leaves for the request.
	run             string
	fence           *tapepb.Fence
	seq, generation int64
	task            string
}

// newEnv prepares a case on a memory store of its own. The caller closes it.
func newEnv(t *testing.T, c entry) *env {
	t.Helper()
	store := memory.New(&memory.Options{Clock: func() time.Time { return epoch }})
	e := &env{t: t, store: store.Open(), advance: store.Advance, timed: true, touched: newTouched()}
	e.prepare(c)
	return e
}

func (e *env) prepare(c entry) {
	e.t.Helper()
	clean := newCutter(e.touched, 0, 0)
	e.tape = tape.New(behind(e.store, clean, e.hideMulti), nil)
	e.clean = tapepb.NewTapeClient(e.serve(clean))
	if c.setup != nil {
		c.setup(e)
	}
	e.advance(time.Second) // so that a write is seen by its time
}

func (e *env) close() {
	for _, stop := range slices.Backward(e.stops) {
		stop()
	}
}

// serve starts a server over the store behind a cutter, and returns a connection to it.
func (e *env) serve(c *cutter) *grpc.ClientConn {
	e.t.Helper()
	lis := &listener{Listener: bufconn.Listen(32 << 10)}
	c.kill = lis.breakAll
	server := tapeserver.New(behind(e.store, c, e.hideMulti), &tapeserver.Options{Logger: slog.New(slog.DiscardHandler), NoMatcher: true})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return lis.Listener.(*bufconn.Listener).DialContext(ctx)
		}))
	if err != nil {
		cancel()
		e.t.Fatal(err)
	}
	e.stops = append(e.stops, func() {
		_ = conn.Close()
		cancel()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) && !lis.isBroken() {
			e.t.Errorf("Serve = %v, want nil after a drain", err)
		}
	})
	return conn
}

// listener can break its connections, as the end of a process does.
type listener struct {
	net.Listener
	mu     sync.Mutex
	conns  []net.Conn
	broken bool
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.conns = append(l.conns, c)
	}
	return c, err
}

func (l *listener) breakAll() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = true
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func (l *listener) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// must returns what a step of a preparation is answered.
func must[R any](e *env) func(R, error) R {
	e.t.Helper()
	return func(r R, err error) R {
		e.t.Helper()
		if err != nil {
			e.t.Fatalf("preparation: %v", err)
		}
		return r
	}
}

// caller makes a request. Two callers of one case differ in their names, their fences, and so in
// the bodies of their requests.
type caller struct {
	context.Context
	tapepb.TapeClient
	// name is the lease owner or claimer.
	name  string
	fence *tapepb.Fence
}

// first is the caller that is interrupted.
func (e *env) first(c tapepb.TapeClient) caller {
	return caller{e.t.Context(), c, "host:1", e.fence}
}

// answer is what a caller gets: the response or the status, as text. Grant ids are random and left
// out, and so are times where the clock moves.
func (e *env) answer(m proto.Message, err error) string {
	if err != nil {
		s := status.Convert(err)
		reason := ""
		for _, d := range s.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				reason = info.GetReason()
			}
		}
		return fmt.Sprintf("%v %s", s.Code(), reason)
	}
	m = proto.Clone(m)
	e.hideRandom(m.ProtoReflect())
	return withoutUUIDs(prototext.MarshalOptions{Multiline: true}.Format(m))
}

func (e *env) hideRandom(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Name() == "grant_id", !e.timed && strings.HasSuffix(string(f.Name()), "_ms"):
			m.Clear(f)
		case f.Message() != nil && !f.IsList() && !f.IsMap():
			e.hideRandom(v.Message())
		}
		return true
	})
}

// uuids are those that the server makes up: a run's id is derived from its key, and recurs.
var uuids = regexp.MustCompile(`(timer/|timer_id: *"|session_id: *"|"session":"|reaction_id: *"|"id":")[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// withoutUUIDs looks for uuids only in lines that can have one, because matching is slow.
func withoutUUIDs(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "-4") {
			line = uuids.ReplaceAllString(line, "${1}UUID")
		}
		b.WriteString(line)
	}
	return b.String()
}

// content writes down all runs that the case has touched. A run without grants, events and records
// is left out: it is the empty beginning of a session or of a business key, and no reader finds it.
func (e *env) content() string {
	e.t.Helper()
	e.touched.mu.Lock()
	runs := slices.Sorted(maps.Keys(e.touched.runs))
	indexes := slices.Sorted(maps.Keys(e.touched.indexes))
	e.touched.mu.Unlock()
	var all []string
	for _, id := range runs {
		if text := e.contentOf(id, indexes); text != "" {
			all = append(all, text)
		}
	}
	// By content: the ids of sessions may be random.
	slices.Sort(all)
	return strings.Join(all, "")
}

func (e *env) contentOf(id runstore.RunID, indexes []runstore.IndexName) string {
	e.t.Helper()
	ctx := e.t.Context()
	run, err := e.store.GetRun(ctx, id)
	if errors.Is(err, runstore.ErrNotFound) {
		return ""
	}
	e.check(err)
	var b strings.Builder
	at := func(t time.Time) string {
		if !e.timed {
			return ""
		}
		return t.Format("15:04:05.000000")
	}
	name := string(id)
	if kind, _, _ := strings.Cut(name, "/"); kind == "session" || kind == "reaction" {
		name = kind // the rest has the hash of a name that may be random
	}
	fmt.Fprintf(&b, "run %s status=%d unlisted=%t token=%d holder=%q/%q/%d/%q expires=%s runnable=%t\n", name, run.Status, run.Unlisted,
		run.Token, run.Holder.Owner, run.Holder.Reactor, run.Holder.Token, run.Holder.Preempted, at(run.ExpiresAt), !run.RunnableAt.IsZero())
	n := 0
	for ev, err := range runstore.Journal(ctx, e.store, id, 1) {
		e.check(err)
		n++
		fmt.Fprintf(&b, "  event %d %s %s token=%d %s\n", ev.Seq, ev.Kind, ev.Data, ev.Token, at(ev.Time))
	}
	for r, err := range runstore.Records(ctx, e.store, id, "") {
		e.check(err)
		n++
		if r.Key == "grant" { // the grant's random id
			r.Value = nil
		}
		fmt.Fprintf(&b, "  record %s v%d %s created=%d %s updated=%d %s token=%d\n", r.Key, r.Version, strings.ReplaceAll(string(r.Value), "\n", " "),
			r.Created.Seq, at(r.Created.Time), r.Updated.Seq, at(r.Updated.Time), r.Updated.Token)
	}
	if n == 0 && run.Token == 0 && run.Unlisted {
		return ""
	}
	for _, index := range append(indexes, runstore.IndexRuns, runstore.IndexRunnable) {
		for p, err := range runstore.Entries(ctx, e.store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			e.check(err)
			if p.Run == id {
				short, _, _ := strings.Cut(string(index), "/")
				fmt.Fprintf(&b, "  index %s %s v%d at %s\n", short, p.Record.Key, p.Record.Version, at(p.At))
			}
		}
	}
	// Sorted: the keys of some records are random.
	lines := strings.SplitAfter(withoutUUIDs(b.String()), "\n")
	slices.Sort(lines[1:])
	return strings.Join(lines, "")
}

func (e *env) check(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}
