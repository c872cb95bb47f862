package postgres

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// writeStatus is the outcome of a write. The numbers are those that the functions return.
type writeStatus int16

const (
	statusRefused writeStatus = iota
	statusApplied
	statusAppliedBefore
	statusNoSuchRun
	statusVoided
	statusEvicted // voided, but it may have been applied and its trace evicted since
)

// writeResult is the row that every write returns (type tapestore.answer).
type writeResult struct {
	status      writeStatus
	now         time.Time
	first, last runstore.Seq
	versions    []runstore.Version
	head        rules.Head
	summary     runstore.Record
	hadGrants   bool // head.Former was read; for a create: the run is purged
	// Token of a stored grant or release, and how the grant before it ended.
	resultToken  runstore.Token
	resultFormer runstore.GrantEnd
	// For a settled write: the multi-commit id of the commit that stored the result.
	whole []byte
}

// nullHead scans the columns of a run's head, any of which may be NULL. The statements that read
// runs and the type tapestore.answer have them in this order.
type nullHead struct {
	status                                           pgtype.Int4
	created, runnable, expires                       pgtype.Timestamptz
	seq, token                                       pgtype.Int8
	state                                            pgtype.Int2
	strict                                           pgtype.Bool
	grant, owner, reactor, preemptedFrom, preemptWhy []byte
	ttl, maxStall                                    pgtype.Int8
	granted, renewed, progressed                     pgtype.Timestamptz
	former                                           pgtype.Int2
	unlisted                                         pgtype.Bool
}

func (h *nullHead) targets() []any { return append(h.first(), h.rest()...) }

// first and rest return the targets in two parts, because tapestore.answer has other columns
// between them.
func (h *nullHead) rest() []any {
	return []any{&h.ttl, &h.granted, &h.renewed, &h.maxStall, &h.progressed, &h.former, &h.unlisted}
}

func (h *nullHead) first() []any {
	return []any{
		&h.status, &h.created, &h.runnable, &h.seq, &h.token, &h.expires, &h.state,
		&h.strict, &h.grant, &h.owner, &h.reactor, &h.preemptedFrom, &h.preemptWhy,
	}
}

func (h *nullHead) head(id runstore.RunID) rules.Head {
	head := rules.Head{
		Run: runstore.Run{
			ID: id, Status: runstore.Status(h.status.Int32), Unlisted: h.unlisted.Bool, CreatedAt: timeOf(h.created), RunnableAt: timeOf(h.runnable),
			LastSeq: runstore.Seq(h.seq.Int64), Token: runstore.Token(h.token.Int64), ExpiresAt: timeOf(h.expires),
		},
		Grant: runstore.GrantID(h.grant), State: rules.GrantState(h.state.Int16),
	}
	if head.State == rules.Current {
		head.Holder = runstore.Holder{
			Owner: runstore.Owner(h.owner), Reactor: runstore.Reactor(h.reactor), Token: head.Token,
			ExpiresAt: head.ExpiresAt, Strict: h.strict.Bool,
			Preempted: runstore.Preempted{From: runstore.Owner(h.preemptedFrom), Reason: string(h.preemptWhy)},
			TTL:       micros(h.ttl), GrantedAt: timeOf(h.granted), RenewedAt: timeOf(h.renewed),
			MaxStall: micros(h.maxStall), ProgressedAt: timeOf(h.progressed), Former: runstore.GrantEnd(h.former.Int16),
		}
	}
	return head
}

// nullRecord scans the columns of a record except its key. They are NULL if the record is absent.
type nullRecord struct {
	key, value             []byte
	version                pgtype.Int8
	createdSeq, updatedSeq pgtype.Int8
	created, updated       pgtype.Timestamptz

	createdToken, updatedToken pgtype.Int8
}

func (r *nullRecord) targets() []any { return append(r.first(), r.rest()...) }

// first and rest return the targets in two parts, because tapestore.answer has other columns
// between them.
func (r *nullRecord) rest() []any { return []any{&r.createdToken, &r.updatedToken} }

func (r *nullRecord) first() []any {
	return []any{&r.version, &r.value, &r.createdSeq, &r.created, &r.updatedSeq, &r.updated}
}

func (r *nullRecord) record(key runstore.RecordKey) runstore.Record {
	if !r.version.Valid {
		return runstore.Record{}
	}
	return runstore.Record{
		Key: key, Version: runstore.Version(r.version.Int64), Value: r.value,
		Created: runstore.Stamp{Seq: runstore.Seq(r.createdSeq.Int64), Time: timeOf(r.created), Token: runstore.Token(r.createdToken.Int64)},
		Updated: runstore.Stamp{Seq: runstore.Seq(r.updatedSeq.Int64), Time: timeOf(r.updated), Token: runstore.Token(r.updatedToken.Int64)},
	}
}

func micros(us pgtype.Int8) time.Duration { return time.Duration(us.Int64) * time.Microsecond }

// timeOf returns the time in UTC, or the zero time for NULL.
func timeOf(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

// readWrite reads the row of tapestore.write: the columns of tapestore.answer, then the former
// grants.
func (st *statement) readWrite(rows pgx.Rows, a *writeResult) error { return st.readAnswer(rows, a) }

// readSettled reads the row of tapestore.settle: that of readWrite, then the multi-commit id.
func (st *statement) readSettled(rows pgx.Rows, a *writeResult) error {
	var whole []byte
	err := st.readAnswer(rows, a, &whole)
	a.whole = whole
	return err
}

func (st *statement) readAnswer(rows pgx.Rows, a *writeResult, further ...any) error {
	var (
		status      pgtype.Int2
		now         pgtype.Timestamptz
		first, last pgtype.Int8
		versions    []int64
		head        nullHead
		epoch       pgtype.Int8
		summary     nullRecord
		token       pgtype.Int8
		end         pgtype.Int2
		former      [][]byte
	)
	targets := slices.Concat([]any{&status, &now, &first, &last, &versions}, head.first(), []any{&epoch}, summary.first(),
		head.rest(), summary.rest(), []any{&token, &end, &former}, further)
	if err := rows.Scan(targets...); err != nil {
		return err
	}
	*a = writeResult{
		status: writeStatus(status.Int16), now: timeOf(now), first: runstore.Seq(first.Int64), last: runstore.Seq(last.Int64),
		head: head.head(st.requests[0].run), summary: summary.record(runstore.SummaryKey),
	}
	a.head.Epoch = runstore.Epoch(epoch.Int64)
	a.hadGrants = former != nil
	a.resultToken, a.resultFormer = runstore.Token(token.Int64), runstore.GrantEnd(end.Int16)
	for _, one := range former {
		a.head.Former = append(a.head.Former, one...)
	}
	for _, v := range versions {
		a.versions = append(a.versions, runstore.Version(v))
	}
	return nil
}

// readRenewed reads the result of a heartbeat. On a refusal the row contains the explanation as
// JSON.
func (st *statement) readRenewed(rows pgx.Rows, a *writeResult) error {
	var expires pgtype.Timestamptz
	var strict pgtype.Bool
	var reactor, refusal []byte
	f := st.requests[0].fence
	if err := rows.Scan(&expires, &strict, &reactor, &refusal); err != nil || refusal != nil {
		return errors.Join(err, a.fromJSON(refusal, f.Run()))
	}
	*a = writeResult{status: statusApplied, head: rules.Head{
		Run: runstore.Run{ID: f.Run(), ExpiresAt: timeOf(expires), Holder: runstore.Holder{
			Owner: f.Owner(), Reactor: runstore.Reactor(reactor), Token: f.Token(), ExpiresAt: timeOf(expires), Strict: strict.Bool,
		}},
		Grant: f.Grant(), State: rules.Current,
	}}
	return nil
}

// fromJSON reads a result that the server returned as JSON. Statements that usually succeed return
// only refusals in this form. A nil text leaves a unchanged.
func (a *writeResult) fromJSON(refusal []byte, id runstore.RunID) error {
	if refusal == nil {
		return nil
	}
	var row struct {
		Verdict  writeStatus
		Now      time.Time
		First    runstore.Seq `json:"first_seq"`
		Last     runstore.Seq `json:"last_seq"`
		Status   int32
		Created  *time.Time
		Runnable *time.Time
		Seq      int64
		Token    int64
		Expires  *time.Time
		State    int16     `json:"grant_state"`
		Strict   bool      `json:"is_strict"`
		Grant    jsonBytes `json:"grant_id"`
		Owner    jsonBytes
		Reactor  jsonBytes
		From     jsonBytes `json:"preempted_from"`
		Reason   jsonBytes `json:"preempt_reason"`
		Epoch    int64
		Versions []runstore.Version

		TTL        int64
		Granted    *time.Time
		Renewed    *time.Time
		MaxStall   int64 `json:"max_stall"`
		Progressed *time.Time
		Former     int16 `json:"former_end"`
		Unlisted   bool
	}
	if err := json.Unmarshal(refusal, &row); err != nil {
		return err
	}
	h := nullHead{
		status: pgtype.Int4{Int32: row.Status}, created: nullable(row.Created), runnable: nullable(row.Runnable),
		expires: nullable(row.Expires), seq: pgtype.Int8{Int64: row.Seq}, token: pgtype.Int8{Int64: row.Token},
		state: pgtype.Int2{Int16: row.State}, strict: pgtype.Bool{Bool: row.Strict},
		grant: row.Grant, owner: row.Owner, reactor: row.Reactor, preemptedFrom: row.From, preemptWhy: row.Reason,
		ttl: pgtype.Int8{Int64: row.TTL}, granted: nullable(row.Granted), renewed: nullable(row.Renewed),
		maxStall: pgtype.Int8{Int64: row.MaxStall}, progressed: nullable(row.Progressed),
		former: pgtype.Int2{Int16: row.Former}, unlisted: pgtype.Bool{Bool: row.Unlisted},
	}
	*a = writeResult{status: row.Verdict, now: row.Now.UTC(), first: row.First, last: row.Last, head: h.head(id), versions: row.Versions}
	a.head.Epoch = runstore.Epoch(row.Epoch)
	return nil
}

func nullable(t *time.Time) pgtype.Timestamptz {
	if t == nil {
		return pgtype.Timestamptz{}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

// jsonBytes decodes a bytea in PostgreSQL's JSON form: \x and hexadecimal digits.
type jsonBytes []byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *jsonBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(strings.TrimPrefix(string(text), `\x`))
	return err
}

func (a *writeResult) committed() runstore.Committed {
	return runstore.Committed{
		FirstSeq: a.first, LastSeq: a.last, Time: a.now, Versions: a.versions, Replayed: a.status == statusAppliedBefore,
	}
}
