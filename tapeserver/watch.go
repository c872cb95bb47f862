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

// watch logs when a store begins to fail and when it has recovered, for reads and writes apart: a store on a full disk
// can be read. It keeps a store that fails now and then from filling the log.
type watch struct {
	log *slog.Logger
	now func() time.Time

	mu            sync.Mutex
	reads, writes storeState
	damage        map[string]time.Time // when a fault in stored data was logged, by method and reason
}

// storeState is what the last reads, or writes, say about a store.
type storeState struct {
	failing bool
	logged  bool // the log says that it fails
	since   time.Time
	calls   int       // that failed since then
	next    time.Time // before it, nothing more is logged
}

const (
	// quietTime is the shortest time between two lines that say that a store fails: 5 s, half of an orchestrator's
	// usual period of probes.
	quietTime = 5 * time.Second
	// repeatTime is after how long a store that goes on failing, or the same damage, is logged again.
	repeatTime = time.Minute
)

func newWatch(log *slog.Logger) *watch {
	return &watch{log: log, now: time.Now, damage: map[string]time.Time{}}
}

// damages are the reasons by which a BeginEffect is refused, as PERMISSION_DENIED, because stored
// data is wrong or gone.
var damages = []string{"STORE_BEHIND", "CORRUPT", "UNREADABLE_VALUE"}

// isRead reports whether a method only reads.
func isRead(method string) bool {
	return slices.ContainsFunc([]string{"Get", "List", "Subscribe", "Watch"}, func(p string) bool { return strings.HasPrefix(method, p) })
}

// call records how a call of a client ended.
func (w *watch) call(ctx context.Context, method string, err error) {
	state := &w.writes
	if isRead(method) {
		state = &w.reads
	}
	switch code := status.Code(err); {
	case code == codes.OK, code == codes.NotFound, code == codes.Aborted, code == codes.FailedPrecondition:
		w.record(state, isRead(method), nil) // the store has answered
	case err == errShuttingDown || ctx.Err() != nil: // ended by its client or by the server
	case code == codes.Unavailable, code == codes.Unknown:
		w.record(state, isRead(method), err)
	case code == codes.DataLoss, code == codes.Internal && reasonOf(err) != "REFUSED",
		code == codes.PermissionDenied && slices.Contains(damages, reasonOf(err)):
		w.damaged(method, err)
	}
}

// ping records whether the store answered.
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

// damaged logs an answer that stored data is wrong or gone: once a minute for each method and reason, since a
// client can provoke one.
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
