package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// ledgers are the rows of the records on a page, in the form of the JSON output. Bodies are shown
// only in JSON.
type ledgers struct {
	Conversation *sessionView     `json:"session_state,omitempty"`
	Decisions    []decisionView   `json:"decisions,omitempty"`
	Effects      []effectView     `json:"effects"`
	Outbox       []outboxView     `json:"outbox,omitempty"`
	Obligations  []obligationView `json:"obligations,omitempty"`
	Budget       *budgetView      `json:"budget,omitempty"`
	Gates        []gateView       `json:"gates,omitempty"`
	Timers       []timerView      `json:"timers,omitempty"`
	Compaction   *compactionView  `json:"compaction,omitempty"`
}

type sessionView struct {
	App     string      `json:"app"`
	User    string      `json:"user"`
	Session string      `json:"session"`
	Updated time.Time   `json:"updated"`
	State   string      `json:"state"`
	Events  []eventView `json:"last_events"`
}

type eventView struct {
	ID         string    `json:"id"`
	Author     string    `json:"author"`
	Invocation string    `json:"invocation"`
	Time       time.Time `json:"time"`
	Content    string    `json:"content,omitempty"`
	Actions    string    `json:"actions,omitempty"`
}

type decisionView struct {
	Index     int64     `json:"index"`
	Model     string    `json:"model"`
	Policy    string    `json:"policy_version,omitempty"`
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Request   string    `json:"request,omitempty"`
	Response  string    `json:"response,omitempty"`
	Rationale string    `json:"rationale,omitempty"`
}

type effectView struct {
	Key         string    `json:"key"`
	Status      string    `json:"status"`
	Tool        string    `json:"tool"`
	Semantics   string    `json:"semantics"`
	Dispatch    string    `json:"dispatch"`
	Decision    int64     `json:"decision"`
	Connector   string    `json:"connector,omitempty"`
	BusinessKey string    `json:"business_key,omitempty"`
	Scope       string    `json:"scope,omitempty"`
	Seq         int64     `json:"seq"`
	Changed     time.Time `json:"changed"`
	Request     string    `json:"request,omitempty"`
	Response    string    `json:"response,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// claimView is a claim of a piece of work. By and Expires are empty if there is none.
type claimView struct {
	By         string    `json:"claimed_by,omitempty"`
	Expires    time.Time `json:"claim_expires,omitzero"`
	Generation int64     `json:"claim_generation"`
}

type outboxView struct {
	Key       string    `json:"key"`
	Status    string    `json:"status"`
	Attempts  int32     `json:"attempts"`
	Due       time.Time `json:"due,omitzero"`
	Reference string    `json:"external_ref,omitempty"`
	LastError string    `json:"last_error,omitempty"`
	claimView
}

type obligationView struct {
	Seq         int64     `json:"seq"`
	Effect      string    `json:"effect_key"`
	Kind        string    `json:"kind"`
	Compensator string    `json:"compensator,omitempty"`
	Status      string    `json:"status"`
	Attempts    int32     `json:"attempts"`
	MaxAttempts int32     `json:"max_attempts"`
	Due         time.Time `json:"due,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	Payload     string    `json:"payload,omitempty"`
	Result      string    `json:"result,omitempty"`
	Changed     time.Time `json:"changed"`
	claimView
}

type budgetView struct {
	USDSpent    float64 `json:"usd_spent"`
	USDCap      float64 `json:"usd_cap"`
	TokensSpent int64   `json:"tokens_spent"`
	TokenCap    int64   `json:"token_cap"`
}

type gateView struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Context    string `json:"context,omitempty"`
	Resolution string `json:"resolution,omitempty"`
}

type timerView struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	State   string    `json:"state"`
	Fires   time.Time `json:"fires"`
	Set     time.Time `json:"set"`
	Payload string    `json:"payload,omitempty"`
}

type compactionView struct {
	State     string `json:"state"`
	UpTo      int64  `json:"up_to_seq"`
	Decisions int64  `json:"decisions"`
	Effects   int64  `json:"effects"`
	Bytes     int64  `json:"bytes"`
}

// add adds the row of a record.
func (l *ledgers) add(now time.Time, row any) {
	switch r := row.(type) {
	case tape.Decision:
		l.Decisions = append(l.Decisions, decisionView{r.Index, r.Model, r.PolicyVersion, int64(r.Seq), r.Time, r.Request, r.Response, r.Rationale})
	case tape.Effect:
		l.Effects = append(l.Effects, effectView{
			r.Key, r.Status.String(), r.Tool, r.Semantics.String(), r.Mode.String(), r.Decision,
			r.Connector, r.BusinessKey, r.Scope, int64(r.Seq), r.Time, r.Request, r.Response, r.Error,
		})
		if r.Mode == tape.Outbox {
			l.Outbox = append(l.Outbox, outboxView{
				r.Key, r.Status.String(), r.DispatchAttempts, r.NextDispatch, r.ExternalRef, r.LastDispatchError,
				claimView{r.DispatchClaimedBy, r.DispatchClaimExpires, r.Claims},
			})
		}
	case tape.Obligation:
		l.Obligations = append(l.Obligations, obligationView{
			int64(r.Seq), r.EffectKey, r.Kind, r.Compensator, r.Status.String(), r.Attempts, r.MaxAttempts, r.NextAttempt,
			r.LastError, r.Payload, r.Result, r.Time, claimView{r.ClaimedBy, r.ClaimExpires, r.Claims},
		})
	case tape.Budget:
		l.Budget = &budgetView{r.USDSpent, r.USDCap, r.TokensSpent, r.TokenCap}
	case tape.Gate:
		l.Gates = append(l.Gates, gateView{r.Name, r.State(), r.Context, r.Resolution})
	case tape.Timer:
		l.Timers = append(l.Timers, timerView{r.ID, r.Kind, r.State(now), timerTime(r.FireAtMS), r.CreatedAt, r.Payload})
	case tape.Compaction:
		l.Compaction = &compactionView{map[bool]string{true: "done", false: "begun"}[r.Done], int64(r.UpTo), r.Decisions, r.Effects, r.Bytes}
	case tape.Session:
		l.addSession(r)
	}
}

func (l *ledgers) addSession(s tape.Session) {
	l.Conversation = &sessionView{App: s.App, User: s.User, Session: s.Session, Updated: s.Updated, State: s.State, Events: []eventView{}}
	for _, e := range s.Events {
		l.Conversation.Events = append(l.Conversation.Events, eventView{e.ID, e.Author, e.Invocation, e.Time, e.Content, e.Actions})
	}
}

// timerTime returns the time at which a timer fires, in UTC, limited to the range of a store's
// times.
func timerTime(ms int64) time.Time {
	return time.UnixMilli(min(max(ms, 0), runstore.EndOfTime.UnixMilli())).UTC()
}

// lastEvents is the number of events of a run's session that are shown.
const lastEvents = 10

// addSessionOf adds the session that a run belongs to, if there is one. A damaged session is noted
// and left out.
func (in *inspection) addSessionOf(ctx context.Context, l *ledgers, run tape.Run) error {
	key := tape.SessionKey{App: run.App, User: run.User, Session: run.Session}
	s, found, err := tape.New(in.store, nil).GetSession(ctx, key, lastEvents)
	if errors.Is(err, tape.ErrFormat) || errors.Is(err, runstore.ErrCorrupt) {
		fmt.Fprintf(in.notes, "the session of the run cannot be read: %v\n", err)
		return nil
	}
	if found {
		l.addSession(s)
	}
	return err
}

// claim describes which worker has claimed a piece of work, by the store clock.
func (in *inspection) claim(c claimView) string {
	if c.By == "" && c.Expires.IsZero() {
		return "free"
	}
	return in.holds(c.By, c.Expires)
}

// table is a ledger as text: the titles of its columns, and its rows.
type table struct {
	titles string
	rows   [][]any
}

// tables returns a table for each ledger, in display order.
func (in *inspection) tables(l ledgers) []table {
	var session, events, budget, compaction [][]any
	if s := l.Conversation; s != nil {
		session = [][]any{{s.State, s.Updated}}
		events = rowsOf(s.Events, func(e eventView) []any { return []any{e.ID, e.Author, e.Invocation, e.Time} })
	}
	if b := l.Budget; b != nil {
		budget = [][]any{{"USD", b.USDSpent, capWord(b.USDCap)}, {"tokens", b.TokensSpent, capWord(b.TokenCap)}}
	}
	if c := l.Compaction; c != nil {
		compaction = [][]any{{c.State, c.UpTo, c.Decisions, c.Effects, c.Bytes}}
	}
	return []table{
		{"SESSION STATE,UPDATED", session},
		{"LAST EVENTS,AUTHOR,INVOCATION,TIME", events},
		{"DECISION,MODEL,POLICY,SEQ,TIME", rowsOf(l.Decisions, func(d decisionView) []any {
			return []any{d.Index, d.Model, d.Policy, d.Seq, d.Time}
		})},
		{"EFFECT,STATUS,TOOL,SEMANTICS,DISPATCH,BUSINESS KEY,SEQ,CHANGED", rowsOf(l.Effects, func(e effectView) []any {
			return []any{e.Key, e.Status, e.Tool, e.Semantics, e.Dispatch, e.BusinessKey, e.Seq, e.Changed}
		})},
		{"OUTBOX,STATUS,CLAIM,GENERATION,ATTEMPTS,DUE,REFERENCE,LAST ERROR", rowsOf(l.Outbox, func(o outboxView) []any {
			return []any{o.Key, o.Status, in.claim(o.claimView), o.Generation, o.Attempts, o.Due, o.Reference, o.LastError}
		})},
		{"OBLIGATION,EFFECT,KIND,STATUS,CLAIM,GENERATION,ATTEMPTS,DUE,LAST ERROR", rowsOf(l.Obligations, func(o obligationView) []any {
			attempts := fmt.Sprintf("%d of %d", o.Attempts, o.MaxAttempts)
			return []any{o.Seq, o.Effect, o.Kind, o.Status, in.claim(o.claimView), o.Generation, attempts, o.Due, o.LastError}
		})},
		{"BUDGET,SPENT,CAP", budget},
		{"GATE,STATE", rowsOf(l.Gates, func(g gateView) []any { return []any{g.Name, g.State} })},
		{"TIMER,KIND,STATE,FIRES,SET", rowsOf(l.Timers, func(m timerView) []any {
			return []any{m.ID, m.Kind, m.State, m.Fires, m.Set}
		})},
		{"COMPACTION,UP TO SEQ,DECISIONS,EFFECTS,BYTES", compaction},
	}
}

// showLedgers prints the tables that have rows, and always the table of effects.
func (in *inspection) showLedgers(l ledgers) error {
	for _, t := range in.tables(l) {
		if len(t.rows) == 0 && !strings.HasPrefix(t.titles, "EFFECT,") {
			continue
		}
		fmt.Fprintln(in.out)
		if err := in.show(strings.Split(t.titles, ","), t.rows); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf returns the row of each element.
func rowsOf[V any](all []V, row func(V) []any) (rows [][]any) {
	for _, v := range all {
		rows = append(rows, row(v))
	}
	return rows
}

// readRow returns the row of a record. A record that cannot be read is noted and left out, so that
// it does not hide the others.
func (in *inspection) readRow(run runstore.RunID, rec runstore.Record) any {
	row, err := tape.RowOf(run, rec)
	if err != nil {
		fmt.Fprintf(in.notes, "record %s cannot be read: %v\n", plain(string(rec.Key)), err)
	}
	return row
}

func capWord[N float64 | int64](limit N) string {
	if limit <= 0 {
		return "none"
	}
	return fmt.Sprint(limit)
}
