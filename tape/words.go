package tape

import (
	"fmt"
	"time"
)

// String returns the status in words; "status-N" for a number without a name.
func (s RunStatus) String() string {
	return wordOf(s, []string{"", "runnable", "running", "waiting", "terminal", "failed", "compensating", "stuck", "cancelled"})
}

// String returns the status in words; "status-N" for a number without a name.
func (s EffectStatus) String() string {
	return wordOf(s, []string{"", "pending", "confirmed", "failed", "unknown"})
}

// String returns the status in words; "status-N" for a number without a name.
func (s ObligationStatus) String() string {
	return wordOf(s, []string{"", "pending", "committed", "compensated", "stuck"})
}

// String returns the semantics in words: empty if they are not specified, and "status-N" for a number
// without a name.
func (s EffectSemantics) String() string {
	if s == SemanticsUnspecified {
		return ""
	}
	return wordOf(s, []string{"", "idempotent", "non-idempotent", "observe-only"})
}

// String returns the mode in words: empty if it is not specified, and "status-N" for a number without
// a name.
func (m DispatchMode) String() string {
	if m == DispatchUnspecified {
		return ""
	}
	return wordOf(m, []string{"", "inline", "outbox"})
}

// State returns the state of a gate in words: "empty", "delivered" or "consumed".
func (g Gate) State() string {
	switch {
	case g.Consumed:
		return "consumed"
	case g.Delivered:
		return "delivered"
	default:
		return "empty"
	}
}

// State returns the state of a timer at now, a time of the store clock, in words: "set", "due" or
// "fired".
func (m Timer) State(now time.Time) string {
	switch {
	case m.Fired:
		return "fired"
	case m.FireAtMS <= now.UnixMilli():
		return "due"
	default:
		return "set"
	}
}

// wordOf returns the word of a number. The word of 0 is not in use: a number that is not specified
// has no name.
func wordOf[N ~int32](n N, words []string) string {
	if n > 0 && int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprintf("status-%d", int32(n))
}
