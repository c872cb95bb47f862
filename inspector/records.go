package inspector

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// recordView is the present state of a record.
type recordView struct {
	Ref     string    `json:"ref"`
	Key     string    `json:"key"`
	Version int64     `json:"version"`
	Created stampView `json:"created"`
	Updated stampView `json:"updated"`
	// Row is what a ledger of Tape has in the record.
	Row   *rowView `json:"row,omitempty"`
	Value content  `json:"value"`
}

type stampView struct {
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Token     int64     `json:"token,omitempty"`
	TokenText string    `json:"token_text,omitempty"`
}

// rowView is a row of a ledger.
type rowView struct {
	Ledger string     `json:"ledger"`
	Name   string     `json:"name"`
	State  string     `json:"state,omitempty"`
	Level  string     `json:"level,omitempty"`
	Why    string     `json:"why,omitempty"` // what needs attention
	Facts  []factView `json:"facts,omitempty"`
	Bodies []bodyView `json:"bodies,omitempty"`
}

// factView is a small field of a row. Time is set instead of Value for a time.
type factView struct {
	Name  string    `json:"name"`
	Value string    `json:"value,omitempty"`
	Time  time.Time `json:"time,omitzero"`
}

// bodyView is a text that a row stores verbatim.
type bodyView struct {
	Part string `json:"part"`
	content
}

// secret reports whether a record has the id of a grant. The store shows grant ids to no reader,
// because a fence can be made of one (runstore.Holder).
func secret(key runstore.RecordKey) bool { return tape.HoldsGrant(key) || key == lease.HandoffKey }

func viewStamp(s runstore.Stamp) stampView {
	v := stampView{Seq: int64(s.Seq), Time: s.Time, Token: int64(s.Token)}
	if s.Token != 0 {
		v.TokenText = s.Token.String()
	}
	return v
}

func viewRecord(id runstore.RunID, rec runstore.Record, now time.Time) recordView {
	v := recordView{
		Ref: toRef(string(rec.Key)), Key: shown(string(rec.Key)), Version: int64(rec.Version),
		Created: viewStamp(rec.Created), Updated: viewStamp(rec.Updated), Value: preview(string(rec.Value)),
	}
	if secret(rec.Key) {
		v.Value = content{Bytes: len(rec.Value), Hidden: true}
		return v
	}
	if row, err := tape.RowOf(id, rec); err == nil && row != nil { // otherwise the value is shown as it is
		v.Row = viewRow(row, now)
	}
	return v
}

// viewRow returns the row of a ledger.
func viewRow(row any, now time.Time) *rowView {
	switch r := row.(type) {
	case tape.Decision:
		v := newRow("decision", fmt.Sprint(r.Index), "", "model", r.Model, "policy version", r.PolicyVersion)
		return v.with("request", r.Request, "response", r.Response, "rationale", r.Rationale)
	case tape.Effect:
		return viewEffect(r, now)
	case tape.Obligation:
		return viewObligation(r, now)
	case tape.Budget:
		v := newRow("budget", "budget", "", "USD", spent(r.USDSpent, r.USDCap), "tokens", spent(float64(r.TokensSpent), float64(r.TokenCap)))
		if r.USDCap > 0 && r.USDSpent >= r.USDCap || r.TokenCap > 0 && r.TokensSpent >= r.TokenCap {
			v.State = "used up"
			return v.attend(levelWarn, "the budget is used up")
		}
		return v
	case tape.Gate:
		v := newRow("gate", r.Name, r.State())
		return v.with("context", r.Context, "resolution", r.Resolution)
	case tape.Timer:
		fires := time.UnixMilli(min(max(r.FireAtMS, 0), runstore.EndOfTime.UnixMilli())).UTC()
		v := newRow("timer", r.ID, r.State(now), "kind", r.Kind)
		v.time("fires", fires)
		if v.State == "due" && now.Sub(fires) > lateAfter {
			v.attend(levelWarn, "the timer is due, and nothing has fired it")
		}
		return v.with("payload", r.Payload)
	case tape.Compaction:
		state := "begun"
		if r.Done {
			state = "done"
		}
		return newRow("compaction", "compaction", state, "up to seq", fmt.Sprint(int64(r.UpTo)), "decisions", fmt.Sprint(r.Decisions),
			"effects", fmt.Sprint(r.Effects), "bytes", fmt.Sprint(r.Bytes))
	case tape.Session:
		v := newRow("session", r.Session, "", "app", r.App, "user", r.User)
		v.time("updated", r.Updated)
		return v.with("state", r.State)
	default:
		return nil
	}
}

// lateAfter, 30 s, is how late work may be before it needs attention: reactors poll every few seconds.
const lateAfter = 30 * time.Second

func viewEffect(r tape.Effect, now time.Time) *rowView {
	v := newRow("effect", r.Key, r.Status.String(), "tool", r.Tool, "semantics", r.Semantics.String(), "dispatch", r.Mode.String(),
		"connector", r.Connector, "business key", r.BusinessKey, "scope", r.Scope)
	if r.Decision >= 0 {
		v.fact("decision", fmt.Sprint(r.Decision))
	}
	if r.Mode == tape.Outbox {
		v.fact("attempts", fmt.Sprint(r.DispatchAttempts))
		v.time("next dispatch", r.NextDispatch)
		v.claim(r.DispatchClaimedBy, r.DispatchClaimExpires)
	}
	v.fact("external reference", r.ExternalRef)
	v.fact("last error", r.LastDispatchError)
	switch {
	case r.Status == tape.EffectUnknown:
		v.attend(levelBad, "it is unknown whether the effect happened")
	case r.Status == tape.EffectFailed:
		v.attend(levelWarn, "the effect failed")
	case r.Status == tape.EffectPending && r.Mode == tape.Outbox && !r.NextDispatch.IsZero() && now.Sub(r.NextDispatch) > lateAfter &&
		!now.Before(r.DispatchClaimExpires):
		v.attend(levelWarn, "the effect is due, and no dispatcher has claimed it")
	case r.Status == tape.EffectPending && now.Sub(r.Time) > lateAfter && r.Mode != tape.Outbox:
		v.attend(levelWarn, "the effect has begun, and its outcome is not recorded")
	}
	return v.with("request", r.Request, "response", r.Response, "error", r.Error)
}

func viewObligation(r tape.Obligation, now time.Time) *rowView {
	v := newRow("obligation", r.EffectKey, r.Status.String(), "kind", r.Kind, "compensator", r.Compensator,
		"attempts", fmt.Sprintf("%d of %d", r.Attempts, r.MaxAttempts))
	v.time("next attempt", r.NextAttempt)
	v.claim(r.ClaimedBy, r.ClaimExpires)
	v.fact("last error", r.LastError)
	switch {
	case r.Status == tape.ObligationStuck:
		v.attend(levelBad, "every attempt to compensate failed, or a worker gave up")
	case r.Status == tape.ObligationPending && !r.NextAttempt.IsZero() && now.Sub(r.NextAttempt) > lateAfter:
		v.attend(levelWarn, "the obligation is due, and no worker has claimed it")
	case r.Status == tape.ObligationCommitted && now.Sub(r.ClaimExpires) > lateAfter:
		v.attend(levelWarn, "the claim of a worker has expired, and no other worker has claimed the obligation")
	}
	return v.with("payload", r.Payload, "result", r.Result)
}

// newRow returns a row. facts are names and values; empty values are left out.
func newRow(ledger, name, state string, facts ...string) *rowView {
	v := &rowView{Ledger: ledger, Name: brief(name), State: state}
	for i := 0; i < len(facts); i += 2 {
		v.fact(facts[i], facts[i+1])
	}
	return v
}

func (v *rowView) fact(name, value string) {
	if value != "" {
		v.Facts = append(v.Facts, factView{Name: name, Value: brief(value)})
	}
}

func (v *rowView) time(name string, at time.Time) {
	if !at.IsZero() {
		v.Facts = append(v.Facts, factView{Name: name, Time: at})
	}
}

func (v *rowView) claim(by string, until time.Time) {
	v.fact("claimed by", by)
	v.time("claim expires", until)
}

func (v *rowView) attend(level, why string) *rowView {
	v.Level, v.Why = level, why
	return v
}

// with adds bodies: names and texts. Empty texts are left out.
func (v *rowView) with(bodies ...string) *rowView {
	for i := 0; i < len(bodies); i += 2 {
		if bodies[i+1] != "" {
			v.Bodies = append(v.Bodies, bodyView{bodies[i], preview(bodies[i+1])})
		}
	}
	return v
}

func spent(spent, limit float64) string {
	if limit <= 0 {
		return fmt.Sprintf("%g, no limit", spent)
	}
	return fmt.Sprintf("%g of %g", spent, limit)
}

// records returns a page of a run's records, by key.
func (in *inspector) records(ctx context.Context, p params) (any, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	at, err := p.cursor("records")
	if err != nil {
		return nil, err
	}
	after, err := fromRef(at)
	if err != nil {
		return nil, badRequest("cursor", "is not one that a page ended with")
	}
	prefix, err := fromRef(p.Get("prefix"))
	if err != nil {
		return nil, badRequest("prefix", "%v", err)
	}
	page, err := in.store.ReadRecords(ctx, id, runstore.RecordQuery{
		Prefix: runstore.RecordKey(prefix), After: runstore.RecordKey(after), Limit: limit,
	})
	if err != nil {
		return nil, err
	}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	v := struct {
		Now     time.Time    `json:"now"`
		Records []recordView `json:"records"`
		Cursor  string       `json:"cursor,omitempty"`
	}{Now: now, Records: []recordView{}}
	size := 0
	for _, rec := range page {
		size += len(rec.Value)
		v.Records = append(v.Records, viewRecord(id, rec, now))
	}
	if len(page) == limit || size >= runstore.MaxPageBytes {
		v.Cursor = p.next("records", toRef(string(page[len(page)-1].Key)))
	}
	return v, nil
}

const maxProblems = 50

// summaryView counts the records of a run by ledger and state, and lists what needs attention.
type summaryView struct {
	Now      time.Time     `json:"now"`
	Counts   []countView   `json:"counts"`
	Problems []problemView `json:"problems"`
	// Omitted is how many problems are left out. Read and More are as in a timeline.
	Omitted int  `json:"omitted,omitempty"`
	Read    int  `json:"records_read"`
	More    bool `json:"records_more,omitempty"`
}

type countView struct {
	Ledger string `json:"ledger"`
	State  string `json:"state,omitempty"`
	Count  int    `json:"count"`
}

type problemView struct {
	Level string    `json:"level"`
	What  string    `json:"what"`
	Why   string    `json:"why"`
	Since time.Time `json:"since,omitzero"`
	Ref   string    `json:"ref,omitempty"` // of a record
}

// summary counts the rows of a run's ledgers, and lists what is stuck. It looks at the records that a
// timeline looks at.
func (in *inspector) summary(ctx context.Context, p params) (any, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	v := summaryView{Now: now, Counts: []countView{}, Problems: []problemView{}}
	place := map[countView]int{} // by ledger and state
	v.Read, v.More, err = in.eachRecord(ctx, id, func(rec runstore.Record) {
		record := viewRecord(id, rec, now)
		row := record.Row
		if row == nil {
			row = &rowView{Ledger: "other"}
		}
		key := countView{Ledger: row.Ledger, State: row.State}
		i, ok := place[key]
		if !ok {
			i = len(v.Counts)
			place[key], v.Counts = i, append(v.Counts, key)
		}
		v.Counts[i].Count++
		switch {
		case row.Level == "":
		case len(v.Problems) == maxProblems:
			v.Omitted++
		default:
			what := strings.TrimSpace(row.Ledger + " " + row.Name)
			v.Problems = append(v.Problems, problemView{row.Level, what, row.Why, rec.Updated.Time, record.Ref})
		}
	})
	return v, err
}
