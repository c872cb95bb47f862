package tapeserver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// tokenOf returns the token of a principal in the tests.
func tokenOf(name string) string { return "s3cret-token-of-the-principal-" + name }

// checker authenticates the principals of a file with lines of NAME ROLE [TENANT…].
func checker(t *testing.T, lines ...string) (*auth.Checker, func(lines ...string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "principals.yaml")
	write := func(lines ...string) {
		t.Helper()
		text := "principals:\n"
		for _, line := range lines {
			f := strings.Fields(line)
			text += fmt.Sprintf("  - {name: %s, role: %s, token: %s", f[0], f[1], tokenOf(f[0]))
			if len(f) > 2 {
				text += ", tenants: [" + strings.Join(f[2:], ", ") + "]"
			}
			text += "}\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(lines...)
	c, err := auth.New(auth.Options{File: path})
	if err != nil {
		t.Fatal(err)
	}
	return c, func(lines ...string) {
		t.Helper()
		write(lines...)
		if changed, err := c.Reload(); !changed || err != nil {
			t.Fatalf("Reload = %v, %v", changed, err)
		}
	}
}

// as returns a context of calls by a principal of the tests; "" for none.
func as(ctx context.Context, name string) context.Context {
	if name == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tokenOf(name))
}

// lockedBuffer is a log that a test reads.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// roleNeeded returns the role that a method should need, as the documentation has it.
func roleNeeded(m protoreflect.MethodDescriptor) string {
	name := string(m.Name())
	reads := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.Contains([]string{"SendSignal", "CompactRun", "RegisterReaction", "DeregisterReaction"}, name):
		return "operate"
	case name != "ListDueTimers" && (name == "AdmitBudget" || slices.ContainsFunc([]string{"Get", "List", "Subscribe", "Watch"}, reads)):
		return "read"
	default:
		return "drive"
	}
}

// namesRun reports whether every request of a method concerns one run.
func namesRun(m protoreflect.MethodDescriptor) bool {
	return m.Name() == "BeginRun" || m.Input().Fields().ByName("run_id") != nil && m.Name() != "SubscribeEvents"
}

// isFiltered reports whether a principal that is limited to tenants gets a part of the method's reply, as
// the documentation has it.
func isFiltered(m protoreflect.MethodDescriptor) bool {
	return slices.Contains([]string{
		"ListRunsToRecover", "ListCompactableRuns", "ListPendingEffects", "ListEffectsToDispatch",
		"ListUnresolvedObligations", "ListDueTimers", "SubscribeEvents", "SubscribeBySubject",
	}, string(m.Name()))
}

// TestAuthorization calls every RPC of the descriptors as every role, with and without tenants, and
// without or with bad credentials.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "read read", "drive drive", "operate operate", "read-a read a b", "drive-a drive a", "operate-a operate a", "operate-b operate b")
	var log lockedBuffer
	store := memory.New(nil).Open()
	c, conn := startAuth(t, store, &tapeserver.Options{Auth: check, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	operate := as(t.Context(), "operate")
	run, err := c.BeginRun(operate, &tapepb.BeginRunRequest{AppName: "app", InvocationId: "i", TenantId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	// operate-b gets an entry of the feed too.
	if _, err := c.BeginRun(operate, &tapepb.BeginRunRequest{AppName: "app", InvocationId: "b", TenantId: "b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteValue(operate, &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: "1", IfVersion: -1}); err != nil {
		t.Fatal(err)
	}
	callers := []struct {
		name, role string
		limited    bool
		tenant     bool // of the run
	}{
		{"", "", false, false}, {"unknown", "", false, false},
		{"read", "read", false, true}, {"drive", "drive", false, true}, {"operate", "operate", false, true},
		{"read-a", "read", true, true}, {"drive-a", "drive", true, true}, {"operate-a", "operate", true, true}, {"operate-b", "operate", true, false},
	}
	order := []string{"", "read", "drive", "operate"}
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	if methods.Len() != 51 {
		t.Errorf("%d methods", methods.Len())
	}
	for i := range methods.Len() {
		m := methods.Get(i)
		for _, caller := range callers {
			want := ""
			switch {
			case caller.role == "":
				want = "UNAUTHENTICATED"
			case slices.Index(order, caller.role) < slices.Index(order, roleNeeded(m)), caller.limited && !isFiltered(m) && (!namesRun(m) || !caller.tenant):
				want = "PERMISSION_DENIED"
			}
			_, err := replyOf(as(t.Context(), caller.name), conn, m, map[string]string{
				"run_id": run.GetRunId(), "tenant_id": "a", "app_name": "app", "invocation_id": "i", "namespace": "n", "key": "k", "gate_name": "g", "timer_id": "t",
			})
			got, code := "", status.Code(err)
			if reason := reasonIn(err); reason == "UNAUTHENTICATED" || reason == "PERMISSION_DENIED" {
				got = reason
			}
			wantCode := map[string]codes.Code{"UNAUTHENTICATED": codes.Unauthenticated, "PERMISSION_DENIED": codes.PermissionDenied}[want]
			if want != "" && m.Name() == "BeginEffect" {
				wantCode = codes.PermissionDenied // clients act after any other status
			}
			if got != want || want != "" && code != wantCode || code == codes.Unimplemented || strings.Contains(fmt.Sprint(err), "s3cret") {
				t.Errorf("%s as %q: %v, want %q", m.Name(), caller.name, err, want)
			}
		}
	}
	if text := log.String(); !strings.Contains(text, "refused a call") || strings.Contains(text, "s3cret") {
		t.Errorf("log %s", text)
	}
}

// startAuth is start, and returns the connection too.
func startAuth(t *testing.T, store runstore.RunStore, opts *tapeserver.Options) (tapepb.TapeClient, *grpc.ClientConn) {
	t.Helper()
	address, _ := listen(t, store, opts)
	conn := connection(t, address)
	return tapepb.NewTapeClient(conn), conn
}

// reasonIn returns the reason of an error's ErrorInfo; "" if it has none.
func reasonIn(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(interface{ GetReason() string }); ok {
			return info.GetReason()
		}
	}
	return ""
}

func TestTenantsAreKeptApart(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a operate a", "b operate b", "c operate c", "all operate")
	c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check})
	a, b, all := as(t.Context(), "a"), as(t.Context(), "b"), as(t.Context(), "all")
	request := func(invocation, tenant string) *tapepb.BeginRunRequest {
		r := beginRequest(invocation)
		r.TenantId = tenant
		return r
	}
	ofA, err := c.BeginRun(a, request("a", "a"))
	if err != nil {
		t.Fatal(err)
	}
	ofNone, err := c.BeginRun(all, request("none", ""))
	if err != nil {
		t.Fatal(err)
	}
	ofB, err := c.BeginRun(b, request("b", "b"))
	if err != nil {
		t.Fatal(err)
	}
	denied := func(what string, err error) string {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || reasonIn(err) != "PERMISSION_DENIED" {
			t.Errorf("%s: %v, want PERMISSION_DENIED", what, err)
		}
		return status.Convert(err).Message()
	}
	_, err = c.BeginRun(b, request("new", "a"))
	denied("BeginRun for another tenant", err)
	_, err = c.BeginRun(b, request("new", ""))
	denied("BeginRun without a tenant", err)
	_, err = c.BeginRun(b, request("a", "b"))
	denied("BeginRun of a run of another tenant", err)
	_, err = c.BeginRun(b, request("none", "b"))
	denied("BeginRun of a run without a tenant", err)
	fenced := request("a", "b")
	fenced.Fence = &tapepb.Fence{Owner: ofA.GetGrant().GetOwner(), Token: ofA.GetGrant().GetToken(), GrantId: ofA.GetGrant().GetGrantId()}
	_, err = c.BeginRun(b, fenced)
	foreignKey := denied("BeginRun with a stolen fence", err)
	fenced.InvocationId = "absent"
	_, err = c.BeginRun(b, fenced)
	if text := denied("BeginRun of no run with a fence", err); text != foreignKey {
		t.Errorf("BeginRun with a fence: %q for no run, %q for a run of another tenant", text, foreignKey)
	}
	if run, err := c.GetRun(a, &tapepb.GetRunRequest{RunId: ofA.GetRunId()}); err != nil || run.GetToken() != ofA.GetGrant().GetToken() {
		t.Errorf("the run's grant has changed: %v, %v", run, err)
	}
	_, err = c.GetRun(b, &tapepb.GetRunRequest{RunId: ofA.GetRunId()})
	foreign := denied("GetRun of another tenant", err)
	for what, id := range map[string]string{"no run": "nothing", "no id": "", "no tenant": ofNone.GetRunId()} {
		_, err = c.GetRun(b, &tapepb.GetRunRequest{RunId: id})
		if text := denied(what, err); text != foreign {
			t.Errorf("%s: %q differs from the refusal of another tenant's run, %q", what, text, foreign)
		}
	}
	// A signal that names a session goes to the newest of its runs that the sender may have.
	toSession := &tapepb.SendSignalRequest{AppName: "treasury", UserId: "ana", SessionId: "s-1", GateName: "g"}
	if newest, err := c.BeginRun(all, request("newest", "a")); err != nil {
		t.Fatal(err)
	} else if r, err := c.SendSignal(all, toSession); err != nil || r.GetRunId() != newest.GetRunId() {
		t.Errorf("SendSignal to a session without a limit: %v, %v", r, err)
	}
	if r, err := c.SendSignal(b, toSession); err != nil || r.GetRunId() != ofB.GetRunId() {
		t.Errorf("SendSignal to a session: %v, %v, want run %s", r, err, ofB.GetRunId())
	}
	_, err = c.SendSignal(as(t.Context(), "c"), toSession)
	denied("SendSignal to a session without a run of the tenant", err)
	// A business key is one key for the whole store, and its effect belongs to one tenant.
	effect := func(ctx context.Context, run string) (*tapepb.BeginEffectResponse, error) {
		return c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: run, CustomKey: "K", Connector: "bank", BusinessKey: "invoice-7", RequestJson: `"s3cret"`})
	}
	if _, err := effect(a, ofA.GetRunId()); err != nil {
		t.Fatal(err)
	}
	_, err = effect(b, ofB.GetRunId())
	denied("BeginEffect with the business key of another tenant", err)
	if r, err := effect(all, ofB.GetRunId()); err != nil || r.GetRunId() != ofA.GetRunId() {
		t.Errorf("BeginEffect without a limit: %v, %v", r, err)
	}
	again, err := c.BeginRun(a, request("a2", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := effect(a, again.GetRunId()); err != nil || r.GetRunId() != ofA.GetRunId() {
		t.Errorf("BeginEffect with the business key of the same tenant: %v, %v", r, err)
	}
}

func TestOtherServices(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "read read x")
	_, conn := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check})
	health := healthpb.NewHealthClient(conn)
	if res, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Check without credentials = %v, %v", res, err)
	}
	for name, want := range map[string]codes.Code{"": codes.Unauthenticated, "read": codes.OK} {
		ctx, cancel := context.WithCancel(as(t.Context(), name))
		watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("Watch as %q: %v, want %v", name, err, want)
		}
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err == nil {
			_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			_, err = stream.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("reflection as %q: %v, want %v", name, err, want)
		}
		cancel()
	}
}

// A stream ends when its principal is withdrawn, or loses the role or the tenant, and goes on when the
// file changes otherwise.
func TestStreamsEndWithTheirCredentials(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, after string
		code                codes.Code
	}{
		{"the token is withdrawn", "read a", "other read", codes.Unauthenticated},
		{"the tenant is withdrawn", "read a", "p read b", codes.PermissionDenied},
		{"the principal becomes limited", "read", "p read b", codes.PermissionDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			check, rewrite := checker(t, "p "+c.before, "all operate")
			client, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check, AuthInterval: time.Millisecond})
			request := beginRequest("i")
			request.TenantId = "a"
			run, err := client.BeginRun(as(t.Context(), "all"), request)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := client.SubscribeRun(as(t.Context(), "p"), &tapepb.SubscribeRunRequest{RunId: run.GetRunId()})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
			rewrite("p "+strings.Replace(c.before, "read", "drive", 1), "all operate") // the stream goes on
			if _, err := client.EndRun(as(t.Context(), "all"), &tapepb.EndRunRequest{RunId: run.GetRunId(), Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatalf("after a change of another kind: %v", err)
			}
			rewrite(c.after)
			if _, err := stream.Recv(); status.Code(err) != c.code || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the stream ends with %v, want %v", err, c.code)
			}
		})
	}
}

// cannotCheck is an authenticator that cannot check credentials.
type cannotCheck struct{}

func (cannotCheck) Authenticate(context.Context, auth.Credentials) (auth.Principal, error) {
	return auth.Principal{}, auth.ErrUnavailable
}

func TestCredentialsThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: cannotCheck{}})
	_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	wantStatus(t, "GetRun", err, codes.Unavailable, "cannot be checked now")
}

// limitless has a role and no name, so all callers share a rate.
type limitless struct{}

func (limitless) Authenticate(_ context.Context, c auth.Credentials) (auth.Principal, error) {
	if len(c.Headers) != 1 {
		return auth.Principal{}, auth.ErrUnauthenticated
	}
	return auth.Principal{Name: c.Headers[0], Role: auth.Operate}, nil
}

func TestRatesOfClients(t *testing.T) {
	t.Parallel()
	c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{
		Auth: limitless{}, Limits: tapeserver.Limits{CallsPerSecond: 1, QueueTimeout: time.Nanosecond},
	})
	call := func(name string) error {
		_, err := c.GetRun(metadata.AppendToOutgoingContext(t.Context(), "authorization", name), &tapepb.GetRunRequest{RunId: "r"})
		return err
	}
	for { // until the burst of 2 is used up
		err := call("p")
		if status.Code(err) == codes.NotFound {
			continue
		}
		wantLimit(t, "a call", err, "CallsPerSecond")
		break
	}
	if err := call("q"); status.Code(err) != codes.NotFound {
		t.Errorf("another client: %v", err)
	}
}
