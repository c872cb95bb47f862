package command

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// spanCollector is an OTLP endpoint.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []string // SERVICE SCOPE NAME
}

func (c *spanCollector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range req.GetResourceSpans() {
		service := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, service+" "+span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// A server whose environment names an OTLP endpoint has exported all of its spans when it ends.
func TestServeExportsSpans(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spans, endpoint := &spanCollector{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(endpoint, spans)
	go func() { _ = endpoint.Serve(lis) }()
	defer endpoint.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	p := start(t, "--store", "memory", "--healthz-listen", "", "--drain", "10m") // an eighth is for the last spans
	if _, err := p.client(t).BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if text := <-p.output; !strings.HasSuffix(text, "msg=stopped\n") || strings.Contains(text, "level=WARN") {
		t.Errorf("log:\n%s", text)
	}
	for _, want := range []string{"mine tape.v1.Tape/BeginRun", "mine tapestore.create_run"} {
		if !slices.Contains(spans.spans, want) {
			t.Errorf("spans %q, want %q", spans.spans, want)
		}
	}
}

func TestServeRefusesAnotherProtocolOfSpans(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	_, _, err := here(t, "", "serve", "--store", "memory:", "--listen", "127.0.0.1:0", "--healthz-listen", "")
	if err == nil || !strings.Contains(err.Error(), `OTEL_EXPORTER_OTLP_PROTOCOL is "http/protobuf"; spans are exported by grpc only`) {
		t.Errorf("serve = %v", err)
	}
}
