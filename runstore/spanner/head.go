package spanner

import (
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// head is a run's row, as sql/write_guard.sql selects it. The statements that read runs select only
// the columns that callers see.
type head struct {
	Run           []byte
	Status        int64
	Created       spanner.NullTime
	Runnable      spanner.NullTime
	LastSeq       int64
	Token         int64
	GrantState    int64
	GrantID       []byte `spanner:"GrantId"`
	Owner         []byte
	Reactor       []byte
	Strict        bool
	Expires       spanner.NullTime
	PreemptedFrom []byte
	PreemptReason []byte
	// The following columns are NULL in a run that was created or last leased before version 3 of
	// the schema.
	TTL        spanner.NullInt64 `spanner:"TtlMicros"`
	Granted    spanner.NullTime
	Renewed    spanner.NullTime
	MaxStall   spanner.NullInt64 `spanner:"MaxStallMicros"`
	Progressed spanner.NullTime
	FormerEnd  spanner.NullInt64
	Unlisted   spanner.NullBool
	// HeldUntil is the expiry of the current grant as granted, or as moved later by a scan
	// (runnable_index.go). It is never later than Expires.
	HeldUntil spanner.NullTime

	VersionFloor int64
	VersionTop   int64
	CallerWrites int64
	OtherWrites  int64
	Seen         time.Time
	Purging      []byte
	// The following are read only for a grant and for ReadTerms.
	FormerGrants []byte
	Terms        []byte
	GrantEnded   spanner.NullTime
}

// rules returns the head in the form that package rules judges.
func (h *head) rules() rules.Head {
	r := rules.Head{
		Run: runstore.Run{
			ID: runstore.RunID(h.Run), Status: runstore.Status(h.Status), Unlisted: h.Unlisted.Bool,
			CreatedAt: timeOf(h.Created), RunnableAt: timeOf(h.Runnable), LastSeq: runstore.Seq(h.LastSeq),
			Token: runstore.Token(h.Token), ExpiresAt: timeOf(h.Expires),
		},
		Grant: runstore.GrantID(h.GrantID), State: rules.GrantState(h.GrantState), Former: h.FormerGrants, Terms: h.Terms,
	}
	if r.State == rules.Current {
		r.Holder = runstore.Holder{
			Owner: runstore.Owner(h.Owner), Reactor: runstore.Reactor(h.Reactor), Token: r.Token, ExpiresAt: r.ExpiresAt, Strict: h.Strict,
			TTL: durationOf(h.TTL), GrantedAt: timeOf(h.Granted), RenewedAt: timeOf(h.Renewed),
			MaxStall: durationOf(h.MaxStall), ProgressedAt: timeOf(h.Progressed), Former: runstore.GrantEnd(h.FormerEnd.Int64),
			Preempted: runstore.Preempted{From: runstore.Owner(h.PreemptedFrom), Reason: string(h.PreemptReason)},
		}
	} else if r.State != rules.None {
		r.Last = runstore.Term{Owner: runstore.Owner(h.Owner), Reactor: runstore.Reactor(h.Reactor), GrantedAt: timeOf(h.Granted)}
		if ended := timeOf(h.GrantEnded); !ended.Before(r.Last.GrantedAt) {
			r.Last.EndedAt = ended
		}
	}
	return r
}

// grant copies a grant, or its end, into the head. The end of a grant leaves the last holder's
// columns in the row; rules() omits them.
func (h *head) grant(r rules.Head) {
	if int64(r.Token) != h.Token {
		h.HeldUntil = nullTime(r.ExpiresAt)
	}
	h.Token, h.GrantState, h.GrantID, h.Expires = int64(r.Token), int64(r.State), stored(r.Grant), nullTime(r.ExpiresAt)
	h.FormerGrants, h.Terms, h.GrantEnded = r.Former, r.Terms, nullTime(r.Last.EndedAt)
	if r.State == rules.Current {
		h.Owner, h.Reactor, h.Strict = stored(r.Holder.Owner), stored(r.Holder.Reactor), r.Holder.Strict
		h.PreemptedFrom, h.PreemptReason = stored(r.Holder.Preempted.From), stored(r.Holder.Preempted.Reason)
		h.TTL, h.Granted, h.Renewed = nullMicros(r.Holder.TTL), nullTime(r.Holder.GrantedAt), nullTime(r.Holder.RenewedAt)
		h.MaxStall, h.Progressed = nullMicros(r.Holder.MaxStall), nullTime(r.Holder.ProgressedAt)
		h.FormerEnd = spanner.NullInt64{Int64: int64(r.Holder.Former), Valid: true}
	}
}

// columns returns the names and values of the head's columns, without the key.
func (h *head) columns() []column {
	return []column{
		{"Status", h.Status}, {"Created", h.Created}, {"Runnable", h.Runnable}, {"LastSeq", h.LastSeq}, {"Token", h.Token},
		{"GrantState", h.GrantState}, {"GrantId", stored(h.GrantID)}, {"Owner", stored(h.Owner)}, {"Reactor", stored(h.Reactor)},
		{"Strict", h.Strict}, {"Expires", h.Expires}, {"PreemptedFrom", stored(h.PreemptedFrom)}, {"PreemptReason", stored(h.PreemptReason)},
		{"TtlMicros", h.TTL}, {"Granted", h.Granted}, {"Renewed", h.Renewed}, {"MaxStallMicros", h.MaxStall}, {"Progressed", h.Progressed},
		{"FormerEnd", h.FormerEnd}, {"Unlisted", h.Unlisted}, {"HeldUntil", h.HeldUntil},
		{"VersionFloor", h.VersionFloor}, {"VersionTop", h.VersionTop}, {"CallerWrites", h.CallerWrites}, {"OtherWrites", h.OtherWrites},
		{"Seen", h.Seen}, {"Purging", h.Purging}, {"FormerGrants", h.FormerGrants},
		{"Terms", h.Terms}, {"GrantEnded", h.GrantEnded},
	}
}

type column struct {
	name  string
	value any
}

func timeOf(t spanner.NullTime) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

func nullTime(t time.Time) spanner.NullTime {
	return spanner.NullTime{Time: t.UTC(), Valid: !t.IsZero()}
}

func durationOf(micros spanner.NullInt64) time.Duration {
	return time.Duration(micros.Int64) * time.Microsecond
}

func nullMicros(d time.Duration) spanner.NullInt64 {
	return spanner.NullInt64{Int64: d.Microseconds(), Valid: d != 0}
}

// record is a record's row. All columns are nullable, because a join may find no row.
type record struct {
	Key          []byte
	Version      spanner.NullInt64
	CreatedSeq   spanner.NullInt64
	CreatedTime  spanner.NullTime
	CreatedToken spanner.NullInt64
	UpdatedSeq   spanner.NullInt64
	UpdatedTime  spanner.NullTime
	UpdatedToken spanner.NullInt64
	PlaceNames   [][]byte
	PlaceTimes   []time.Time
	Value        []byte
}

// recordOf returns the row of a record without index entries.
func recordOf(r runstore.Record) *record {
	number := func(n int64) spanner.NullInt64 { return spanner.NullInt64{Int64: n, Valid: true} }
	return &record{
		Key: stored(r.Key), Version: number(int64(r.Version)), Value: stored(r.Value),
		CreatedSeq: number(int64(r.Created.Seq)), CreatedTime: nullTime(r.Created.Time), CreatedToken: number(int64(r.Created.Token)),
		UpdatedSeq: number(int64(r.Updated.Seq)), UpdatedTime: nullTime(r.Updated.Time), UpdatedToken: number(int64(r.Updated.Token)),
	}
}

func (r *record) public() runstore.Record {
	return runstore.Record{
		Key: runstore.RecordKey(r.Key), Version: runstore.Version(r.Version.Int64), Value: r.Value,
		Created: stampOf(r.CreatedSeq, r.CreatedTime, r.CreatedToken),
		Updated: stampOf(r.UpdatedSeq, r.UpdatedTime, r.UpdatedToken),
	}
}

func stampOf(seq spanner.NullInt64, at spanner.NullTime, token spanner.NullInt64) runstore.Stamp {
	return runstore.Stamp{Seq: runstore.Seq(seq.Int64), Time: timeOf(at), Token: runstore.Token(token.Int64)}
}
