package cuts_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The processes of these tests are this program again, which serves one file of SQLite.

// serverVariable makes a process a server. Its value is an order.
const serverVariable = "TAPESTORE_CUTS_SERVER"

// order says what a server does.
type order struct {
	URL  string
	Harm harm
	// At is the store call of the first RPC at which the server announces that it may be killed.
	At int
}

// The lines that a server writes: its address, and that it has come to the call.
const (
	addressLine = "address "
	reachedLine = "reached"
)

// TestServer is no test: it is the process that the tests below start, and serves until that is
// killed or its parent has gone.
func TestServer(t *testing.T) {
	text := os.Getenv(serverVariable)
	if text == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the parent
		os.Exit(1)
	}()
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	store, err := runstore.Open(t.Context(), o.URL)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := newCutter(newTouched(), o.Harm, o.At)
	c.kill = func() { fmt.Println("\n" + reachedLine) }
	fmt.Println("\n" + addressLine + lis.Addr().String())
	server := tapeserver.New(behind(store, c, false), &tapeserver.Options{Logger: slog.New(slog.DiscardHandler), NoMatcher: true})
	t.Fatal(server.Serve(t.Context(), lis))
}

// process is a server in a process of its own.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startProcess(t *testing.T, o order) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(program, "-test.run=^TestServer$", "-test.count=1")}
	p.cmd.Env = append(os.Environ(), serverVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // the process ends when it is closed
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// await returns the rest of the process's next line that begins with prefix.
func (p *process) await(prefix string) string {
	p.t.Helper()
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), prefix); ok {
			return rest
		}
	}
	p.t.Fatalf("the server ended before it wrote %q", prefix)
	return ""
}

// kill sends SIGKILL and waits for the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// onSQLite prepares a case on a file of SQLite, whose clock moves by itself.
func onSQLite(t *testing.T, c entry, url string, n *touched) *env {
	t.Helper()
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, store: store, advance: func(time.Duration) {}, touched: n}
	e.stops = append(e.stops, func() { e.check(store.Close()) })
	e.prepare(c)
	return e
}

func fileURL(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "tape.db") }

// killedCases are those of which each store call is met by a kill -9.
var killedCases = []string{
	"BeginEffect, business key", "CompleteEffect", "EndRun", "ChargeBudget", "SendSignal, releases", "AppendEvent, new session",
}

// A server process on SQLite gets SIGKILL before, during or after a store call. Then the client repeats
// its request on another server.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	found := 0
	for _, c := range entries() {
		if !slices.Contains(killedCases, c.name()) {
			continue
		}
		found++
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			calls := executionsOf(c).storeCalls(t)
			// What the killed process touches is what an uninterrupted request does.
			touched := newTouched()
			x := newExecutions(c, func(t *testing.T, c entry) *env { return onSQLite(t, c, fileURL(t), touched) })
			x.after(t, "R")
			for n := 1; n <= len(calls); n++ {
				harms := []harm{killedBefore}
				if !isRead(calls[n-1]) {
					harms = append(harms, killedDuring)
				}
				if n == len(calls) {
					harms = append(harms, killedAfter)
				}
				for _, h := range harms {
					rounds := 1
					if h == killedDuring { // the call may have come to any point
						rounds = effort.Choose(1, 10)
					}
					for i := range rounds {
						t.Run(fmt.Sprintf("%v call %d, %s, %d", h, n, calls[n-1], i+1), func(t *testing.T) {
							x.killProcess(t, touched, n, len(calls), h)
						})
					}
				}
			}
		})
	}
	if found != len(killedCases) {
		t.Errorf("%d of the cases %q exist", found, killedCases)
	}
}

func (x *executions) killProcess(t *testing.T, n *touched, at, calls int, h harm) {
	url := fileURL(t)
	e := onSQLite(t, x.c, url, n)
	defer e.close()
	p := startProcess(t, order{URL: url, Harm: h, At: at})
	conn, err := grpc.NewClient(p.await(addressLine), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answered := make(chan string, 1)
	go func() { answered <- e.answer(x.c.do(e, e.first(tapepb.NewTapeClient(conn)))) }()
	p.await(reachedLine)
	p.kill()
	// In the middle of its last call the process may still have answered.
	if got := <-answered; got != "Unavailable " && (h != killedDuring || got != x.after(t, "R").answer) {
		t.Errorf("the client of the killed server is answered %s, want a broken connection", got)
	}
	x.wantContinued(t, e, at, h, calls, 'R')
}
