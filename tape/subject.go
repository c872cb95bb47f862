package tape

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Subject returns the path of a journal entry, derived from its kind, payload and run. Every
// segment but the status is escaped, so that a path has a fixed number of segments for its kind.
// Text outside ASCII is not escaped.
func Subject(kind, payload string, run runstore.RunID) string {
	var p map[string]any
	decoder := json.NewDecoder(strings.NewReader(payload))
	decoder.UseNumber() // a float does not represent every index of a decision exactly
	if decoder.Decode(&p) != nil {
		p = nil // all members then read as empty
	}
	text := func(key string) string { s, _ := p[key].(string); return s }
	status, id := strings.ToLower(text("status")), string(run)
	switch kind {
	case kindRun:
		return path("run", status, text("app"), text("user"), text("session"), id)
	case kindDecision:
		index, _ := p["decision_index"].(json.Number)
		return path("decision", "recorded", id, index.String())
	case kindEffect:
		if !slices.Contains([]string{"pending", "confirmed", "failed", "unknown", "reconciled"}, status) {
			status = "pending"
		}
		return path("effect", status, text("tool"), id)
	case kindObligation:
		return path("obligation", status, text("kind"), id)
	case "gate":
		return path("gate", status, text("gate"), id)
	case "value":
		verb := "changed"
		if deleted, _ := p["deleted"].(bool); deleted {
			verb = "deleted"
		}
		return path("value", verb, text("namespace"), text("key"))
	case "event":
		return path("event", "appended", text("app"), text("user"), text("session"))
	default:
		return "/tape/" + kind
	}
}

// path joins a kind, a status and encoded segments.
func path(kind, status string, segments ...string) string {
	var b strings.Builder
	b.WriteString("/tape/" + kind + "/" + status)
	for _, s := range segments {
		b.WriteByte('/')
		writeSegment(&b, s)
	}
	return b.String()
}

func writeSegment(b *strings.Builder, s string) {
	if s == "" {
		b.WriteByte('_')
	}
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == 0x7f || strings.IndexByte(`/ *%?#\`, c) >= 0 {
			fmt.Fprintf(b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
}
