package command

import (
	"context"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/internal/clientlimit"
)

// The most open connections of the HTTP listeners. One address gets a part, so that a client that opens
// connections and leaves them leaves some for the others.
const (
	// maxProbes: a probe is one request, after which its connection is closed.
	maxProbes = 64
	// maxScrapes: a scraper has one connection.
	maxScrapes = 16
	// maxBrowsers: a browser opens six at most with HTTP/1.1, and one with HTTP/2.
	maxBrowsers = 256
)

// httpConns bound the connections of the HTTP listeners of one server.
type httpConns struct{ probes, metrics, inspector *clientlimit.Conns }

func newHTTPConns(log *slog.Logger) httpConns {
	conns := func(listener string, most, perAddress int) *clientlimit.Conns {
		return clientlimit.NewConns(clientlimit.ConnsOptions{Total: most, PerAddress: perAddress, Listener: listener, Log: log})
	}
	return httpConns{
		conns("probes", maxProbes, maxProbes/2), conns("metrics", maxScrapes, maxScrapes/2),
		conns("inspector", maxBrowsers, clientlimit.Share(maxBrowsers)), // behind a proxy all browsers have one address
	}
}

// measure makes a counter show the refused connections.
func (c httpConns) measure(meters metric.MeterProvider) error {
	all := map[string]*clientlimit.Conns{"probes": c.probes, "metrics": c.metrics, "inspector": c.inspector}
	_, err := meters.Meter("github.com/tapestore/tapestore/internal/command").Int64ObservableCounter("tapestore.http.connections.refused",
		metric.WithUnit("{connection}"), metric.WithDescription("Connections of the HTTP listeners that were closed because of a limit: connections or connections_per_address."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for listener, conns := range all {
				for _, limit := range []clientlimit.Limit{clientlimit.Connections, clientlimit.ConnectionsPerAddress} {
					o.Observe(conns.Refused(limit), metric.WithAttributes(attribute.String("listener", listener), attribute.String("limit", limit.Label())))
				}
			}
			return nil
		}))
	return err
}

// inTurn returns access once the client may make a request, and inspector.ErrTooMany if that takes too long.
func inTurn(r *http.Request, rates *clientlimit.Rates, client string, access inspector.Access) (inspector.Access, error) {
	if rates.Wait(r.Context(), client, nil) != nil { // or the client is gone
		return inspector.Access{}, inspector.ErrTooMany
	}
	return access, nil
}
