package alloydb

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestRefusesBadCertificates(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{CertificateTTL: 10 * time.Minute})

	none := newRawClient(t, s)
	none.config.Certificates = nil
	none.wantAlert(t, "certificate required")

	foreign, other := newRawClient(t, s), newRawClient(t, startServer(t, Options{}))
	foreign.config.Certificates = other.config.Certificates
	foreign.wantAlert(t, "unknown certificate authority")

	expired := newRawClient(t, s)
	expired.enter(t)
	s.SkewClock(11 * time.Minute)
	expired.wantAlert(t, "expired certificate")
	newRawClient(t, s).enter(t) // signed by the same clock
	hosttest.WaitFor(t, "all three are counted", func() bool { return s.Stats().Refused == 3 })
}

// A connector whose certificate is past its end, as after a sleep, has another
// one signed.
func TestConnectorRefreshesExpiredCertificate(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{CertificateTTL: 10 * time.Minute})
	// What is signed an hour ago is over already, by the connector's clock.
	s.SkewClock(-time.Hour)
	d := newDialer(t, s, alloydbconn.WithLazyRefresh())
	old := newRawClient(t, s)
	mustConnect(t, s, d, s.Instance())
	signed := s.Stats().Certificates

	s.SkewClock(0)
	old.wantAlert(t, "expired certificate")
	mustConnect(t, s, d, s.Instance())
	if got := s.Stats().Certificates; got != signed+1 {
		t.Errorf("certificates signed for the second connection: %d, want 1", got-signed)
	}
	mustConnect(t, s, d, s.Instance())
	if got := s.Stats().Certificates; got != signed+1 {
		t.Errorf("certificates signed for the third connection: %d, want none", got-signed-1)
	}
}

// A connector whose clock is behind sees no reason to refresh: the refusal comes
// through, and a new Dialer is what helps.
func TestConnectorBehindTheClock(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	d := newDialer(t, s)
	mustConnect(t, s, d, s.Instance())
	s.SkewClock(2 * time.Hour)
	if _, err := connect(t, s, d, s.Instance()); err == nil || !strings.Contains(err.Error(), "expired certificate") {
		t.Errorf("connect: %v, want an error with %q", err, "expired certificate")
	}
	mustConnect(t, s, newDialer(t, s), s.Instance())
}

// The connector refreshes four minutes before the end, with nobody asking for a
// connection, and those that are open stay open.
func TestConnectorRefreshesAhead(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{CertificateTTL: 4*time.Minute + 500*time.Millisecond})
	c := mustConnect(t, s, newDialer(t, s), s.Instance())
	hosttest.WaitFor(t, "a second certificate", func() bool { return s.Stats().Certificates >= 2 })
	mustQuery(t, c)
}
