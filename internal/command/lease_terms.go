package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// errPageFull ends the reading of a journal once a page of terms is full.
var errPageFull = errors.New("the page is full")

// termView is a term in the JSON output of lease terms, or a range of tokens that wrote nothing.
type termView struct {
	Token     int64     `json:"token"`
	TokenText string    `json:"token_text"`
	To        int64     `json:"to,omitempty"` // the last token of a range
	ToText    string    `json:"to_text,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	Reactor   string    `json:"reactor,omitempty"`
	Events    int64     `json:"events"`
	Records   int64     `json:"records"`
	FirstSeq  int64     `json:"first_seq,omitempty"`
	LastSeq   int64     `json:"last_seq,omitempty"`
	First     time.Time `json:"first_write,omitzero"`
	Last      time.Time `json:"last_write,omitzero"`
	Granted   time.Time `json:"granted,omitzero"`
	Expires   time.Time `json:"expires,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	End       string    `json:"end,omitempty"`
}

// wrote extends the times of the term's writes.
func (v *termView) wrote(at time.Time) {
	if v.First.IsZero() || at.Before(v.First) {
		v.First = at
	}
	if at.After(v.Last) {
		v.Last = at
	}
}

// terms is what is read of a run while its terms are listed.
type terms struct {
	from  runstore.Token
	limit int

	head    runstore.Run
	stored  map[runstore.Token]runstore.Term    // the terms that the store lists; nil if it lists none
	records map[runstore.Token]*termView        // the terms that the records' stamps show
	breaks  map[runstore.Token]lease.BreakEntry // by the token that was broken
	rows    []termView                          // the page
	prev    runstore.Token                      // the last token before the next row
	current *termView                           // the term of the journal that is being read
	falls   runstore.Seq                        // the first seq at which the token falls
	next    runstore.Token                      // where the next page begins; 0 if this is the last
}

func (l *leases) terms(ctx context.Context, args []string) error {
	id := runstore.RunID(args[0])
	t := &terms{limit: l.limit, records: map[runstore.Token]*termView{}, breaks: map[runstore.Token]lease.BreakEntry{}}
	if l.from != "" {
		var err error
		if t.from, err = parseToken(l.from); err != nil {
			return fmt.Errorf("--from %w", err)
		}
		t.prev = t.from - 1
	}
	if err := t.readRecords(ctx, l.store, id); err != nil {
		return err
	}
	var err error
	if t.head, err = l.store.GetRun(ctx, id); err != nil {
		return err
	}
	if reader, ok := runstore.As[runstore.TermReader](l.store); ok {
		stored, err := reader.ReadTerms(ctx, id)
		if err != nil {
			return err
		}
		t.stored = map[runstore.Token]runstore.Term{}
		for _, v := range stored {
			t.stored[v.Token] = v
		}
	}
	if err := t.readJournal(ctx, l.store, id); err != nil && !errors.Is(err, errPageFull) {
		return err
	}
	t.finish(l.now)
	if t.falls > 0 {
		fmt.Fprintf(l.notes, "the token falls at seq %d: the terms overlap; see tapestore audit\n", t.falls)
	}
	if t.next > 0 {
		l.more("terms", fmt.Sprint(int64(t.next)))
	}
	if l.format == "json" {
		return l.json(append([]termView{}, t.rows...))
	}
	var rows [][]any
	for _, v := range t.rows {
		token := tokenWord(runstore.Token(v.Token))
		if v.To != 0 {
			token += " to " + tokenWord(runstore.Token(v.To))
		}
		seqs := "-"
		if v.Events > 0 {
			seqs = fmt.Sprintf("%d-%d", v.FirstSeq, v.LastSeq)
		}
		rows = append(rows, []any{token, v.Owner, v.Reactor, v.Events, v.Records, seqs, v.First, v.Last, v.Granted, v.Expires, v.Ended, v.End})
	}
	return l.inspection.show([]string{"TOKEN", "OWNER", "REACTOR", "EVENTS", "RECORDS", "SEQS", "FIRST WRITE", "LAST WRITE", "GRANTED", "EXPIRES", "ENDED", "END"}, rows)
}

// readRecords reads the stamps of the records. A record counts for the tokens under which it was
// first and last changed.
func (t *terms) readRecords(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
	for rec, err := range runstore.Records(ctx, s, id, "") {
		if err != nil {
			return err
		}
		stamps := []runstore.Stamp{rec.Created}
		if rec.Updated.Token != rec.Created.Token {
			stamps = append(stamps, rec.Updated)
		}
		for _, stamp := range stamps {
			if stamp.Token < max(t.from, 1) {
				continue
			}
			v := t.records[stamp.Token]
			if v == nil {
				v = newTerm(stamp.Token)
				t.records[stamp.Token] = v
			}
			v.Records++
			v.wrote(stamp.Time)
			if stamp.Token == rec.Updated.Token {
				v.wrote(rec.Updated.Time)
			}
		}
		if rec.Key == lease.BreakKey {
			if entry, ok := lease.ParseBreak(rec.Value); ok {
				t.breaks[entry.Broken] = entry
			}
		}
	}
	return nil
}

func newTerm(token runstore.Token) *termView {
	return &termView{Token: int64(token), TokenText: token.String()}
}

// readJournal reads the terms of the journal, up to the end of the page.
func (t *terms) readJournal(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
	var last runstore.Token
	for e, err := range runstore.Journal(ctx, s, id, 1) {
		if err != nil {
			return err
		}
		if e.Token == 0 {
			continue
		}
		if e.Kind == lease.BreakKind {
			if entry, ok := lease.ParseBreak(e.Data); ok && entry.Broken >= t.from && entry.Broken < e.Token {
				t.breaks[entry.Broken] = entry
			}
		}
		if e.Token < last && t.falls == 0 {
			t.falls = e.Seq
		}
		last = e.Token
		if e.Token < t.from { // of an earlier page
			continue
		}
		if t.current == nil || t.current.Token != int64(e.Token) {
			if t.current != nil {
				if err := t.add(*t.current); err != nil {
					t.current = nil
					return err
				}
			}
			if err := t.between(e.Token); err != nil {
				t.current = nil
				return err
			}
			t.current = newTerm(e.Token)
			if r := t.records[e.Token]; r != nil {
				t.current.Records, t.current.First, t.current.Last = r.Records, r.First, r.Last
				delete(t.records, e.Token)
			}
			t.current.FirstSeq = int64(e.Seq)
		}
		v := t.current
		v.Owner, v.LastSeq = string(e.Owner), int64(e.Seq)
		v.Events++
		v.wrote(e.Time)
		if e.Kind == lease.BreakKind && v.Events == 1 {
			v.Reactor = string(lease.BreakReactor)
		}
	}
	return nil
}

// finish adds the terms after the last event, up to the last token of the run, and what is known of
// the current grant and of the ends of terms.
func (t *terms) finish(now time.Time) {
	if t.next == 0 && (t.current == nil || t.add(*t.current) == nil) {
		_ = t.between(t.head.Token + 1) // if the page is full, next is set
	}
	for i := range t.rows {
		t.complete(&t.rows[i], now)
	}
}

// add adds a row to the page. It returns errPageFull if the page has no room for it.
func (t *terms) add(v termView) error {
	if len(t.rows) == t.limit {
		t.next = runstore.Token(v.Token)
		return errPageFull
	}
	t.rows = append(t.rows, v)
	t.prev = max(t.prev, runstore.Token(v.Token), runstore.Token(v.To))
	return nil
}

// between adds the terms between the last row and a token, which wrote no event.
func (t *terms) between(token runstore.Token) error {
	var known []runstore.Token // that are shown one by one
	for other := range t.records {
		known = append(known, other)
	}
	for broken := range t.breaks {
		known = append(known, broken)
	}
	for listed := range t.stored {
		known = append(known, listed)
	}
	known = append(known, t.head.Token)
	if h := t.head.Holder; h.Former != runstore.EndNone {
		known = append(known, h.Token-1)
	}
	slices.Sort(known)
	for _, other := range slices.Compact(known) {
		if other <= t.prev || other >= token {
			continue
		}
		if err := t.silent(other); err != nil {
			return err
		}
		v := t.records[other]
		if v == nil {
			v = newTerm(other)
		}
		if err := t.add(*v); err != nil {
			return err
		}
	}
	return t.silent(token)
}

// silent adds the tokens between the last row and a token, which wrote nothing, as one row. Of an
// earlier epoch they are not known.
func (t *terms) silent(token runstore.Token) error {
	first := max(t.prev, token.Epoch().Floor()) + 1
	if first >= token {
		return nil
	}
	v := *newTerm(first)
	if last := token - 1; last > first {
		v.To, v.ToText = int64(last), last.String()
	}
	return t.add(v)
}

// complete adds what is known of a term's grant and of its end.
func (t *terms) complete(v *termView, now time.Time) {
	token, h := runstore.Token(v.Token), t.head.Holder
	entry, broken := t.breaks[token]
	listed, isListed := t.stored[token]
	if isListed {
		v.Owner, v.Reactor = string(listed.Owner), string(listed.Reactor)
		v.Granted, v.Expires, v.Ended = listed.GrantedAt, listed.ExpiresAt, listed.EndedAt
	}
	switch {
	case broken:
		if v.Owner == "" {
			v.Owner = string(entry.From)
		}
		if v.Reactor == "" {
			v.Reactor = string(entry.Reactor)
		}
		v.End = fmt.Sprintf("broken by %s: %s", entry.Operator, entry.Reason)
	case isListed && listed.End != runstore.EndNone:
		if v.End = listed.End.String(); listed.Reason != "" {
			v.End += ": " + listed.Reason
		}
	case h.Token == token:
		v.Owner, v.Reactor, v.Granted, v.Expires = string(h.Owner), string(h.Reactor), h.GrantedAt, h.ExpiresAt
		v.End = "current, expired"
		if t.head.Live(now) {
			v.End = "current"
		}
	case t.head.Token == token:
		v.End = "released or revoked"
		v.Expires = t.head.ExpiresAt
	case h.Token != 0 && h.Token == token+1 && v.To == 0:
		v.End = h.Former.String()
		if h.Preempted.Reason != "" {
			v.End += ": " + h.Preempted.Reason
			v.Owner = string(h.Preempted.From)
		}
	}
	if v.Events == 0 && v.Records == 0 && v.End == "" {
		v.End = "wrote nothing"
	}
}
