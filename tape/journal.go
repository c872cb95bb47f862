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
	// Payload is a JSON object, compact, with its keys in alphabetical order.
	Payload string
	Time    time.Time
	// Position is the entry's place in the feed of all runs; 0 while the store does not
	// know it, which may be so for a while after the entry was committed. A reader that
	// keeps positions as cursors of the feed takes them from the feed.
	Position runstore.Position
	// Subject is the entry's path, for filters.
	Subject string
	// Token and Owner name the grant under which it was written: 0 and empty for
	// a write without a fence.
	Token runstore.Token
	Owner runstore.Owner
}

// ReadJournal returns a page of a run's journal, from seq on, ascending; fewer
// than limit entries when they get large. It returns every entry that was committed
// before, without waiting for the feed or for other runs. An empty page means that there
// is nothing yet: also when there is no such run, since it may begin later. One read.
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

// EntryOf returns the journal entry that an event of a run stands for.
func EntryOf(id runstore.RunID, e runstore.Event) Entry {
	payload := string(e.Data)
	return Entry{
		Run: id, Seq: e.Seq, Kind: e.Kind, Payload: payload, Time: e.Time, Position: e.Position,
		Subject: Subject(e.Kind, payload, id), Token: e.Token, Owner: e.Owner,
	}
}

// entry returns the payload of a run's own journal entry.
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
