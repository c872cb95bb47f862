package tapeserver

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watch logs when a store begins to fail and when it has recovered, for reads and writes
// separately: a store on a full disk can still be read. It keeps an intermittently failing store
// from filling the log.
type watch struct {
	log *slog.Logger
	now func() time.Time

	mu            sync.Mutex
	reads, writes storeState
	damage        map[string]time.Time // when damaged data was last logged, by method and reason
}

// storeState is the state of a store according to its last reads, or writes.
type storeState struct {
	failing bool
	logged  bool // the failure was logged
	since   time.Time
	calls   int       // failed calls since then
	next    time.Time // time of the next log line at the earliest
}

const (
	// quietTime is the shortest time between two log lines about a failing store: 5 s, half of an
	// orchestrator's usual probe period.
	quietTime = 5 * time.Second
	// repeatTime is the interval at which a store that keeps failing, or the same damage, is logged
	// again.
	repeatTime = time.Minute
)

func newWatch(log *slog.Logger) *watch {
	return &watch{log: log, now: time.Now, damage: map[string]time.Time{}}
}

// damages are the reasons with which BeginEffect is refused, as PERMISSION_DENIED, because stored
// data is damaged or lost.
var damages = []string{"STORE_BEHIND", "CORRUPT", "UNREADABLE_VALUE"}

// isRead reports whether a method only reads.
func isRead(method string) bool {
	return slices.ContainsFunc([]string{"Get", "List", "Subscribe", "Watch"}, func(p string) bool { return strings.HasPrefix(method, p) })
}

// call records the result of a client's call.
func (w *watch) call(ctx context.Context, method string, err error) {
	state := &w.writes
	if isRead(method) {
		state = &w.reads
	}
	switch code := status.Code(err); {
	case code == codes.OK, code == codes.NotFound, code == codes.Aborted, code == codes.FailedPrecondition:
		w.record(state, isRead(method), nil) // the store has replied
	case err == errShuttingDown || ctx.Err() != nil: // the client or the server ended the call
	case code == codes.Unavailable, code == codes.Unknown:
		w.record(state, isRead(method), err)
	case code == codes.DataLoss, code == codes.Internal && reasonOf(err) != "REFUSED",
		code == codes.PermissionDenied && slices.Contains(damages, reasonOf(err)):
		w.damaged(method, err)
	}
}

// ping records whether the store responded.
func (w *watch) ping(err error) { w.record(&w.reads, true, err) }

func (w *watch) record(s *storeState, read bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && !s.failing {
		return
	}
	what, now := "writes", w.now()
	if read {
		what = "reads"
	}
	if err == nil {
		if s.logged {
			w.log.Info("the store answers again", "calls", what, "failed", s.calls, "after", now.Sub(s.since).Round(time.Millisecond))
		}
		*s = storeState{next: s.next}
		return
	}
	if !s.failing {
		s.failing, s.since = true, now
	}
	s.calls++
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(quietTime)
	if s.logged {
		s.next = now.Add(repeatTime)
	}
	s.logged = true
	w.log.Error("the store fails", "calls", what, "failed", s.calls, "error", status.Convert(err).Message())
}

// damaged logs that stored data is damaged or lost: once a minute for each method and reason, since
// a client can provoke it.
func (w *watch) damaged(method string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key, now := method+" "+reasonOf(err), w.now()
	if last, ok := w.damage[key]; ok && now.Sub(last) < repeatTime {
		return
	}
	w.damage[key] = now
	w.log.Error("stored data is damaged or lost", "method", method, "error", status.Convert(err).Message())
}

// reasonOf returns the reason of a status's ErrorInfo.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
