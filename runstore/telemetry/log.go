package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tapestore/tapestore/runstore"
)

// eventLog logs takeovers and the first refused write of each grant. Clients choose runs and fences,
// so the number of lines of each kind is bounded: on average one per second.
type eventLog struct {
	to *slog.Logger // nil for none

	mu                  sync.Mutex
	logged              map[refusal]struct{} // refusals that were logged; emptied when it is full
	refusals, takeovers lines
}

// lines is one kind of line.
type lines struct {
	limit   *rate.Limiter
	leftOut int // lines over the limit since the last one
}

func newLines() lines { return lines{limit: rate.NewLimiter(rate.Every(time.Second), 20)} }

// refusal identifies a grant whose write was refused.
type refusal struct {
	run   runstore.RunID
	grant runstore.GrantID
}

// maxRefusals is 1,024: the number of grants whose refusal is remembered.
const maxRefusals = 1024

func newEventLog(to *slog.Logger) *eventLog {
	return &eventLog{to: to, logged: map[refusal]struct{}{}, refusals: newLines(), takeovers: newLines()}
}

// fenced logs the refusal of a fence, unless the same grant was refused before.
func (l *eventLog) fenced(ctx context.Context, op string, f runstore.Fence, err error) {
	if l.to == nil {
		return
	}
	r := refusal{f.Run(), f.Grant()}
	l.mu.Lock()
	_, again := l.logged[r]
	if !again {
		if len(l.logged) >= maxRefusals {
			clear(l.logged)
		}
		l.logged[r] = struct{}{}
	}
	l.mu.Unlock()
	if again {
		return
	}
	attrs := []slog.Attr{
		slog.String("operation", op), slog.String("run", shown(string(f.Run()))),
		slog.String("owner", shown(string(f.Owner()))), slog.Any("token", f.Token()),
	}
	if fenced := (*runstore.FencedError)(nil); errors.As(err, &fenced) {
		attrs = append(attrs, slog.Any("current_token", fenced.Current), slog.String("holder", shown(string(fenced.Holder.Owner))))
	}
	l.line(ctx, &l.refusals, slog.LevelWarn, "the store refused a write whose grant is not current", attrs)
}

// takeover logs a grant that ended a live or expired one. from is empty if it is not known.
func (l *eventLog) takeover(ctx context.Context, lease runstore.Lease, former runstore.GrantEnd, from runstore.Owner, vacant time.Duration) {
	if l.to == nil {
		return
	}
	attrs := []slog.Attr{
		slog.String("run", shown(string(lease.Run))), slog.String("owner", shown(string(lease.Owner))),
		slog.Any("token", lease.Token), slog.String("former", grantEnds[former]),
	}
	if from != "" {
		attrs = append(attrs, slog.String("from", shown(string(from))), slog.Duration("vacant", vacant))
	}
	l.line(ctx, &l.takeovers, slog.LevelInfo, "a lease was taken over", attrs)
}

// line logs a line within the limit of its kind, with the number of lines that were left out before it.
func (l *eventLog) line(ctx context.Context, kind *lines, level slog.Level, text string, attrs []slog.Attr) {
	if !l.to.Enabled(ctx, level) {
		return
	}
	l.mu.Lock()
	if !kind.limit.Allow() {
		kind.leftOut++
		l.mu.Unlock()
		return
	}
	left := kind.leftOut
	kind.leftOut = 0
	l.mu.Unlock()
	if left > 0 {
		attrs = append(attrs, slog.Int("lines_left_out", left))
	}
	l.to.LogAttrs(ctx, level, text, attrs...)
}
