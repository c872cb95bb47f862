package tape

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The kinds of journal entries that this package writes.
const (
	kindRun      = "run"
	kindDecision = "decision"
	kindEffect   = "effect"
	kindPolicy   = "policy"

	kindObligation = "obligation"
	kindGate       = "gate"
)

// Entry is one entry of a run's journal.
type Entry struct {
	Run  runstore.RunID
	Seq  runstore.Seq
	Kind string
	// Payload is a compact JSON object, with its keys in alphabetical order.
	Payload string
	Time    time.Time
	// Position is the entry's position in the feed of all runs. It is 0 while the store does not
	// know it, possibly for a while after the commit. A reader that stores positions as cursors
	// must take them from the feed.
	Position runstore.Position
	// Subject is the entry's path, for filters.
	Subject string
	// Token and Owner identify the grant under which the entry was written; 0 and empty for a write
	// without a fence.
	Token runstore.Token
	Owner runstore.Owner
}

// ReadJournal returns up to limit entries of a run's journal, ascending from a seq; fewer if they
// are large. It returns every entry that was committed before the call and does not wait for the
// feed or for other runs. An empty page means that there is no such entry yet, or no such run,
// since the run may begin later. One read.
func (t *Tape) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]Entry, error) {
	if err := checkRun(id); err != nil {
		return nil, err
	}
	events, err := t.store.ReadJournal(ctx, id, max(from, 0), limit)
	if errors.Is(err, runstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(events))
	for _, e := range events {
		entries = append(entries, EntryOf(id, e))
	}
	return entries, nil
}

// EntryOf returns the journal entry of an event of a run.
func EntryOf(id runstore.RunID, e runstore.Event) Entry {
	payload := string(e.Data)
	return Entry{
		Run: id, Seq: e.Seq, Kind: e.Kind, Payload: payload, Time: e.Time, Position: e.Position,
		Subject: Subject(e.Kind, payload, id), Token: e.Token, Owner: e.Owner,
	}
}

// entry returns the payload of a journal entry about the run itself.
func (r Run) entry(status string) []byte {
	payload := map[string]any{
		"app": r.App, "user": r.User, "session": r.Session, "run_id": r.ID, "status": status,
	}
	if status == "running" {
		payload["invocation_id"] = r.Invocation
		payload["tenant_id"], payload["actor"], payload["subject"] = r.Tenant, r.Actor, r.Identity.Subject
		payload["agent_id"], payload["aiplex_instance_id"] = r.AgentID, r.InstanceID
	}
	return compactJSON(payload)
}
