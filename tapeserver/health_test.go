package tapeserver_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
)

// TestDrainEndsWatches checks that a client which watches the health service, of a service that exists or
// not, does not delay a drain. It receives NOT_SERVING first.
func TestDrainEndsWatches(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "none": healthpb.HealthCheckResponse_SERVICE_UNKNOWN,
	} {
		address, stop := listen(t, memory.New(nil).Open(), &tapeserver.Options{DrainTimeout: never})
		watch, err := healthpb.NewHealthClient(connection(t, address)).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := watch.Recv(); err != nil || r.GetStatus() != first {
			t.Fatalf("%q: Recv = %v, %v, want %v", name, r, err, first)
		}
		if err := stop(); err != nil { // hangs for the drain timeout if the stream does not end
			t.Errorf("%q: Serve = %v, want nil", name, err)
		}
		if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%q: Recv = %v, %v, want NOT_SERVING", name, r, err)
		}
		_, err = watch.Recv()
		wantStatus(t, "the end of the stream", err, codes.Unavailable, "shutting down")
	}
}

// TestADrainingServerIsNotReady checks that /readyz fails while a server drains, although its store answers.
func TestADrainingServerIsNotReady(t *testing.T) {
	t.Parallel()
	server := tapeserver.New(memory.New(nil).Open(), patient(nil))
	probes := &tapeserver.Probes{}
	probes.SetServer(server)
	ready := func(code int, body string) {
		t.Helper()
		reply := httptest.NewRecorder()
		probes.ServeHTTP(reply, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if reply.Code != code || reply.Body.String() != body {
			t.Errorf("/readyz = %d %q, want %d %q", reply.Code, reply.Body, code, body)
		}
	}
	_, stop := startServer(t, server)
	ready(200, "ok\n")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	ready(503, "shutting down\n")
}
