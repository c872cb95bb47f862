package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// hang ends the wait of a test that would otherwise hang. It says nothing about speed.
const hang = 5 * time.Minute

// TestMain runs the command itself where a test asks for it, so that the tests can
// start it, and kill it, as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("TAPESTORE_TEST_RUN") != "" {
		Main()
		return
	}
	code := m.Run()
	if err := errors.Join(postgresemulator.CloseShared(), removeBuilt()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestServeSettings(t *testing.T) {
	t.Parallel()
	type env map[string]string
	base := serveConfig{
		listen: "127.0.0.1:7878", probes: "127.0.0.1:7879", store: defaultStore, maxMessageBytes: 4 << 20, drain: 8 * time.Second, matcherLease: 10 * time.Second,
		limits: tapeserver.Limits{BytesInFlight: 128 << 20, Connections: 1024, Streams: 2048},
	}
	with := func(change func(*serveConfig)) serveConfig { c := base; change(&c); return c }
	for _, c := range []struct {
		name string
		args string
		env  env
		want serveConfig
		err  string
	}{
		{name: "defaults", want: base},
		{name: "environment", env: env{"TAPE_LISTEN": "a:1", "TAPE_HEALTHZ_LISTEN": "b:2", "TAPE_STORE": ":memory:", "TAPE_FENCE": "required", "TAPE_INSECURE": "true"},
			want: with(func(c *serveConfig) {
				c.security.insecure = true
				c.listen, c.probes, c.probesGiven, c.store, c.fence = "a:1", "b:2", true, "memory:", tape.FenceRequired
			})},
		{name: "flags win", args: "--listen=[::1]:3 --store=x.db --fence=presented", env: env{"TAPE_LISTEN": "a:1", "TAPE_STORE": "memory", "TAPE_FENCE": "required"},
			want: with(func(c *serveConfig) { c.listen, c.store = "[::1]:3", "sqlite:x.db" })},
		{name: "probes off by flag", args: "--healthz-listen=", want: with(func(c *serveConfig) { c.probes, c.probesGiven = "", true })},
		{name: "probes off by variable", env: env{"TAPE_HEALTHZ_LISTEN": ""}, want: with(func(c *serveConfig) { c.probes, c.probesGiven = "", true })},
		{name: "db", args: "--db=x.db", want: with(func(c *serveConfig) { c.store = "sqlite:x.db" })},
		{name: "db in memory", env: env{"TAPE_DB": ":memory:"}, want: with(func(c *serveConfig) { c.store = "memory:" })},
		{name: "store wins over db", args: "--db=x.db", env: env{"TAPE_STORE": "y.db"}, want: with(func(c *serveConfig) { c.store = "sqlite:y.db" })},
		{name: "log", args: "--log-level=warn --log-format=json", want: with(func(c *serveConfig) { c.logLevel, c.logJSON = slog.LevelWarn, true })},
		{name: "limits", args: "--max-streams=1 --max-connections=2 --max-connections-per-address=4 --max-bytes-in-flight=3", env: env{"TAPE_DRAIN": "1s"},
			want: with(func(c *serveConfig) {
				c.limits, c.drain = tapeserver.Limits{BytesInFlight: 3, Connections: 2, ConnectionsPerAddress: 4, Streams: 1}, time.Second
			})},
		{name: "metrics", args: "--metrics-listen=a:1", env: env{"TAPE_METRICS_LISTEN": "b:2"}, want: with(func(c *serveConfig) { c.metrics = "a:1" })},
		{name: "odd log", args: "--log-format=xml", err: "text or json"},
		{name: "odd level", args: "--log-level=loud", err: "debug, info, warn or error"},
		{name: "no drain", args: "--drain=0s", err: "above zero"},
		{name: "no streams", args: "--max-streams=0", err: "--max-streams is 0; the least is 1"},
		{name: "odd fence", args: "--fence=maybe", err: "presented, required or connection"},
		{name: "odd takeover", args: "--takeover=never", err: "any or expired"},
		{name: "fences of connections", args: "--fence=connection", env: env{"TAPE_TAKEOVER": "expired"},
			want: with(func(c *serveConfig) { c.fence, c.waitForLease = tape.FenceConnection, true })},
		{name: "no store", args: "--store=", err: "--store is empty"},
		{name: "no matcher", args: "--matcher=false --matcher-lease=1s", want: with(func(c *serveConfig) { c.noMatcher, c.matcherLease = true, time.Second })},
		{name: "short lease", args: "--matcher-lease=1ms", err: "--matcher-lease is 1ms; it is from 100ms to 30m"},
		{name: "no message", args: "--max-message-bytes=0", err: "the least is 4096"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := newServeCommand()
			if err := cmd.ParseFlags(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			got, err := serveSettings(cmd, func(name string) (string, bool) { v, ok := c.env[name]; return v, ok })
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("settings %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// process is a running tapestore serve.
type process struct {
	*exec.Cmd
	grpc, probes, metrics string // addresses; empty when there are none
	output                chan string
}

var address = regexp.MustCompile(`msg="?(serving|probes|no probes|metrics)"? (?:grpc|http|healthz-listen)=(\S+)`)

// start runs tapestore serve in a process of its own and waits until it serves.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, exe, args...)
}

// startProgram is start of the command at exe.
func startProgram(t *testing.T, exe string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(exe, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...), output: make(chan string, 1)}
	p.Env = append(os.Environ(), "TAPESTORE_TEST_RUN=1")
	out, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	ready := make(chan struct{})
	go func() {
		var text strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			text.WriteString(lines.Text() + "\n")
			switch m := address.FindStringSubmatch(lines.Text()); {
			case m == nil:
			case m[1] == "probes":
				p.probes = m[2]
			case m[1] == "metrics":
				p.metrics = m[2]
			case m[1] == "serving":
				p.grpc = m[2]
				close(ready)
			}
		}
		p.output <- text.String()
	}()
	select {
	case <-ready:
	case text := <-p.output:
		t.Fatalf("serve ended: %s", text)
	case <-time.After(hang):
		t.Fatal("serve did not come up")
	}
	return p
}

// client returns a client of the server. Its calls wait for a connection: a busy server may close one
// whose handshake takes longer than 5 s.
func (p *process) client(t *testing.T) tapepb.TapeClient {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tapepb.NewTapeClient(conn)
}

func TestSignalsDrain(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			p := start(t, "--store", "memory", "--healthz-listen", "")
			stream, err := p.client(t).SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: "r"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Header(); err != nil { // it is in flight
				t.Fatal(err)
			}
			if err := p.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			text := <-p.output
			if err := p.Wait(); err != nil || !strings.HasSuffix(text, "level=INFO msg=stopped\n") {
				t.Errorf("serve ended with %v: %s; want exit status 0 and \"stopped\" as the last line", err, text)
			}
		})
	}
}

func TestAFileStoreSurvivesAKill(t *testing.T) { // 85
	t.Parallel()
	survivesAKill(t, "sqlite:"+filepath.Join(t.TempDir(), "tape.db"))
}

// survivesAKill checks that a second server goes on where a killed one stopped, and
// returns the run that it did that with.
func survivesAKill(t *testing.T, store string) (run string) {
	t.Helper()
	p := start(t, "--store", store, "--healthz-listen", "")
	c := p.client(t)
	begun, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a", LeaseOwner: "o", LeaseTtlMs: 60000})
	if err != nil {
		t.Fatal(err)
	}
	id := begun.GetRunId()
	d, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, ResponseJson: "{}"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K"}); err != nil {
		t.Fatal(err)
	}
	state := func(c tapepb.TapeClient) []proto.Message {
		t.Helper()
		run, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
		if err != nil {
			t.Fatal(err)
		}
		effect, err := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: "K"})
		if err != nil {
			t.Fatal(err)
		}
		all := []proto.Message{run, effect}
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		stream, err := c.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}
	before := state(c)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.output
	c = start(t, "--store", store, "--healthz-listen", "").client(t)
	after := state(c)
	for i := range before {
		// An entry may be shown before it has a position in the feed.
		if shown, ok := before[i].(*tapepb.JournalEntry); ok && shown.GetGlobalSeq() == 0 {
			after[i].(*tapepb.JournalEntry).GlobalSeq = 0
		}
		if !proto.Equal(before[i], after[i]) {
			t.Errorf("after the kill %v, want %v", after[i], before[i])
		}
	}
	again, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, ResponseJson: "other"})
	if err != nil || !proto.Equal(again, d) {
		t.Errorf("the decision replayed = %v, %v, want %v", again, err, d)
	}
	// The grant outlives the server that made it.
	grant := begun.GetGrant()
	done, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{
		RunId: id, IdempotencyKey: "K", Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED,
		Fence: &tapepb.Fence{Owner: grant.GetOwner(), Token: grant.GetToken(), GrantId: grant.GetGrantId()},
	})
	if err != nil || done.GetStatus() != tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED {
		t.Errorf("CompleteEffect under the old grant = %v, %v, want CONFIRMED", done, err)
	}
	return id
}

func TestServeRefusesBadInputInOneLine(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--store spanner-ish://p/i", `unknown scheme "spanner-ish"`},
		{"--store memory:?colour=red", `unknown key "colour"`},
		{"--store tape.db --listen " + taken.Addr().String(), "--listen"},
		{"--store postgres://127.0.0.1:1/x?retry_timeout=10ms", "connection refused"},
		{"--store postgres://h/x?colour=red", `unknown key "colour"`},
		{"--fence sometimes", "--fence"},
		{"--store memory: --listen 127.0.0.1:0 --metrics-listen " + taken.Addr().String(), "--metrics-listen"},
		{"--no-such-flag", "--no-such-flag"},
		{"extra", "extra"},
	} {
		cmd := exec.Command(exe, append([]string{"serve", "--healthz-listen="}, strings.Fields(c.args)...)...)
		cmd.Env, cmd.Dir = append(os.Environ(), "TAPESTORE_TEST_RUN=1"), t.TempDir()
		out, err := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err == nil || !strings.HasPrefix(text, "tapestore: ") || !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
			t.Errorf("serve %s: %v, %s; want one line with %q", c.args, err, text, c.want)
		}
		if left, _ := os.ReadDir(cmd.Dir); len(left) > 0 {
			t.Errorf("serve %s left %s", c.args, fmt.Sprint(left))
		}
	}
}
