package tape

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// SessionKey identifies a session.
type SessionKey struct{ App, User, Session string }

// Session is a conversation: a state, and the events that made it.
type Session struct {
	SessionKey
	// State is a JSON text.
	State string
	// Updated is the time of the last event, or of the session's creation if there is none.
	Updated time.Time
	// Events are the requested events, in the order in which they were appended.
	Events []SessionEvent
	// Truncated reports that the session has more events than fit into an answer; the oldest are
	// missing.
	Truncated bool
}

// SessionEvent is one event of a session. Texts are stored verbatim.
type SessionEvent struct {
	ID, Invocation, Author, Branch string
	// Content and Actions are JSON texts.
	Content, Actions string
	// Time is the time that the caller gave, or else the time of the commit.
	Time time.Time
}

// The limits of a session's texts, in bytes. A state and an event fit into one answer.
const (
	// MaxSessionState is the largest state, also after a delta was merged into it.
	MaxSessionState = 2_000_000
	// MaxSessionEvent is the largest sum of an event's content and actions.
	MaxSessionEvent = 2_000_000
	// MaxSessionNames is the largest sum of the names of a session, and of an event.
	MaxSessionNames = 16 << 10
)

// A session is a run of its own, which no list of runs shows. Its record "session" is the state.
// Its events are its journal: an event is one entry of kindEvent, followed by entries of kindMore
// with what does not fit.
const (
	sessionKey    runstore.RecordKey = "session"
	kindEvent                        = "event"
	kindMore                         = "event.more"
	IndexSessions runstore.IndexName = "session"
)

// run returns the id of the session's run, which differs from the id of every run of Tape's.
func (k SessionKey) run() runstore.RunID {
	return runstore.RunID("session/" + hashOf(k.App, k.User, k.Session))
}

// index returns the index of the sessions of an app's user, by the time of their last update.
func (k SessionKey) index() runstore.IndexName {
	return IndexSessions + "/" + runstore.IndexName(hashOf(k.App, k.User))
}

// hashOf returns a hash of a list of arbitrary texts, for use in names.
func hashOf(texts ...string) string {
	sum := sha256.Sum256(compactJSON(texts))
	return hex.EncodeToString(sum[:])
}

func (k SessionKey) check() error {
	fields := []field{{"app_name", k.App}, {"user_id", k.User}, {"session_id", k.Session}}
	if err := checkText(fields...); err != nil {
		return err
	}
	return checkSize("the names of a session", len(k.App)+len(k.User)+len(k.Session), MaxSessionNames, fields...)
}

// sessionHead is the stored form of a session without its state, which is a body.
type sessionHead struct {
	App     string     `json:"app,omitempty"`
	User    string     `json:"user,omitempty"`
	Session string     `json:"session,omitempty"`
	Updated storedWhen `json:"updated,omitzero"`
	// Deleted reports that the session was deleted: its run is to be purged.
	Deleted bool `json:"deleted,omitempty"`
}

// storedSession is a session with the times that are needed to write it: its last update may be the
// commit that writes it.
type storedSession struct {
	Session
	updated runstore.When
	deleted bool
	created runstore.Stamp // the stamp of its record's creation
}

var sessions = ledger[storedSession]{decode: sessionOf, encode: storedSession.encode}

func (s storedSession) encode() ([]byte, []runstore.Place) {
	head := sessionHead{App: s.App, User: s.User, Session: s.Session.Session, Updated: storeWhen(s.updated)}
	return encode(head, s.State), []runstore.Place{{Index: s.index(), At: s.updated}}
}

func sessionOf(run runstore.RunID, rec runstore.Record) (storedSession, error) {
	var head sessionHead
	var s storedSession
	if err := decode(fmt.Sprintf("session %q", run), rec.Value, &head, &s.State); err != nil {
		return storedSession{}, err
	}
	s.SessionKey = SessionKey{App: head.App, User: head.User, Session: head.Session}
	s.Updated = head.Updated.time(rec.Updated.Time)
	s.updated, s.deleted, s.created = runstore.At(s.Updated), head.Deleted, rec.Created
	return s, nil
}

// size returns an upper bound of the bytes that a session takes in an answer, without events.
func (s Session) size() int {
	const numbers = 128
	return numbers + len(s.App) + len(s.User) + len(s.SessionKey.Session) + len(s.State)
}

func (e SessionEvent) size() int {
	const numbers = 64
	return numbers + len(e.ID) + len(e.Invocation) + len(e.Author) + len(e.Branch) + len(e.Content) + len(e.Actions)
}

func (e SessionEvent) check() error {
	names := []field{{"event.id", e.ID}, {"event.invocation_id", e.Invocation}, {"event.author", e.Author}, {"event.branch", e.Branch}}
	bodies := []field{{"event.content_json", e.Content}, {"event.actions_json", e.Actions}}
	if err := checkText(append(names, bodies...)...); err != nil {
		return err
	}
	size := len(e.ID) + len(e.Invocation) + len(e.Author) + len(e.Branch)
	if err := checkSize("the names of an event", size, MaxSessionNames, names...); err != nil {
		return err
	}
	if !e.Time.IsZero() {
		if err := checkTime("event.timestamp_ms", e.Time); err != nil {
			return err
		}
	}
	return checkSize("an event", len(e.Content)+len(e.Actions), MaxSessionEvent, bodies...)
}

// eventHead is the stored form of an event without its content and actions, which are bodies.
type eventHead struct {
	ID         string `json:"id,omitempty"`
	Invocation string `json:"invocation,omitempty"`
	Author     string `json:"author,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Time       int64  `json:"time_us,omitempty"` // 0: the time of the commit
	More       int    `json:"more,omitempty"`    // the number of entries of kindMore that follow
}

// entries returns the journal entries that hold an event.
func (e SessionEvent) entries() (all []runstore.NewEvent) {
	head := eventHead{ID: e.ID, Invocation: e.Invocation, Author: e.Author, Branch: e.Branch, Time: runstore.Micros(e.Time)}
	data := encode(head, e.Content, e.Actions)
	if len(data) > runstore.MaxEventData {
		head.More = (len(data) + 64) / runstore.MaxEventData // 64: room for the number itself
		data = encode(head, e.Content, e.Actions)
	}
	kind := kindEvent
	for len(data) > 0 || len(all) <= head.More {
		n := min(len(data), runstore.MaxEventData)
		all = append(all, runstore.NewEvent{Kind: kind, Data: data[:n]})
		kind, data = kindMore, data[n:]
	}
	return all
}

// sessionEventOf returns the event of the entry first; data is the data of that entry and of its
// continuations.
func sessionEventOf(first runstore.Event, data []byte) (SessionEvent, error) {
	var head eventHead
	var e SessionEvent
	if err := decode(fmt.Sprintf("event %d of a session", first.Seq), data, &head, &e.Content, &e.Actions); err != nil {
		return SessionEvent{}, err
	}
	e.ID, e.Invocation, e.Author, e.Branch = head.ID, head.Invocation, head.Author, head.Branch
	if e.Time = runstore.FromMicros(head.Time); e.Time.IsZero() {
		e.Time = first.Time
	}
	return e, nil
}

// mergeState merges a delta into a state: a null removes a member, any other value replaces the
// member. A text that is not JSON counts as {}; a delta without members changes nothing; a state
// that is not an object stays unchanged.
func mergeState(state, delta string) string {
	if !json.Valid([]byte(state)) {
		state = "{}"
	}
	var members, changes map[string]json.RawMessage
	if json.Unmarshal([]byte(state), &members) != nil || members == nil {
		return state
	}
	if json.Unmarshal([]byte(delta), &changes) != nil {
		changes = nil
	}
	if len(changes) == 0 {
		return state
	}
	for name, value := range changes {
		if string(value) == "null" {
			delete(members, name)
		} else {
			members[name] = value
		}
	}
	return string(compactJSON(members))
}
