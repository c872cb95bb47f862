package inspector

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// maxTermEvents, 1,000, is how many events a page of terms looks at.
const maxTermEvents = runstore.MaxPage

// termView is a term: a token with the events that were written under it, as far as this page shows.
type termView struct {
	Token     int64     `json:"token"`
	TokenText string    `json:"token_text"`
	Owner     string    `json:"owner,omitempty"`
	Reactor   string    `json:"reactor,omitempty"`
	Events    int       `json:"events"`
	FirstSeq  int64     `json:"first_seq,omitempty"`
	LastSeq   int64     `json:"last_seq,omitempty"`
	First     time.Time `json:"first_write,omitzero"`
	Last      time.Time `json:"last_write,omitzero"`
	Granted   time.Time `json:"granted,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	// End is how the term ended, as far as that is known.
	End   string `json:"end,omitempty"`
	Level string `json:"level,omitempty"`
}

// termsView is a page of terms, newest first. The oldest term of a page may continue on the next.
type termsView struct {
	Now    time.Time  `json:"now"`
	Terms  []termView `json:"terms"`
	Looked int        `json:"looked"` // events
	Cursor string     `json:"cursor,omitempty"`
}

// terms returns the terms that the events of a run show, newest first, and on the first page the last
// token even if it wrote nothing. What the store lists of a term is added, and so are listed terms
// without an event between two terms of the page. A term without an event is not shown if the store
// does not list it, or if it is between two pages.
func (in *inspector) terms(ctx context.Context, p params) (any, error) {
	id, err := p.run()
	if err != nil {
		return nil, err
	}
	head, err := in.store.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	before, err := p.seqCursor("terms", head.LastSeq+1)
	if err != nil {
		return nil, err
	}
	before = min(before, head.LastSeq+1)
	events, err := in.eventsBefore(ctx, id, before, maxTermEvents)
	if err != nil {
		return nil, err
	}
	now, err := in.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	v := termsView{Now: now, Terms: []termView{}, Looked: len(events)}
	if before > head.LastSeq && head.Token != 0 {
		v.Terms = append(v.Terms, termView{Token: int64(head.Token), TokenText: head.Token.String(), Owner: brief(string(head.Holder.Owner))})
	}
	breaks := map[int64]lease.BreakEntry{}
	for _, e := range slices.Backward(events) {
		if e.Token == 0 {
			continue
		}
		if entry, ok := lease.ParseBreak(e.Data); ok && e.Kind == lease.BreakKind && entry.Broken < e.Token {
			breaks[int64(entry.Broken)] = entry
		}
		if n := len(v.Terms); n == 0 || v.Terms[n-1].Token != int64(e.Token) {
			v.Terms = append(v.Terms, termView{Token: int64(e.Token), TokenText: e.Token.String()})
		}
		v.Terms[len(v.Terms)-1].add(e)
	}
	if reader, ok := runstore.As[runstore.TermReader](in.store); ok {
		listed, err := reader.ReadTerms(ctx, id)
		if err != nil {
			return nil, err
		}
		v.Terms = withListed(v.Terms, listed, len(events) == 0 || events[0].Seq == 1)
	}
	for i := range v.Terms {
		v.Terms[i].complete(head, now, breaks)
	}
	if len(events) > 0 && events[0].Seq > 1 {
		v.Cursor = p.next("terms", strconv.FormatInt(int64(events[0].Seq), 10))
	}
	return v, nil
}

// add adds an event that is before those added so far.
func (t *termView) add(e runstore.Event) {
	if t.Events == 0 {
		t.LastSeq, t.Last = int64(e.Seq), e.Time
	}
	t.Events++
	t.Owner, t.FirstSeq, t.First = brief(string(e.Owner)), int64(e.Seq), e.Time
}

// withListed adds what the store lists to the terms of a page, and the listed terms between them; on
// the last page also those before them.
func withListed(terms []termView, listed []runstore.Term, last bool) (all []termView) {
	if len(terms) == 0 {
		return terms
	}
	newest, oldest := terms[0].Token, terms[len(terms)-1].Token
	for _, v := range slices.Backward(listed) {
		token := int64(v.Token)
		if token > newest || token < oldest && !last {
			continue
		}
		for len(terms) > 0 && terms[0].Token > token { // not listed
			all, terms = append(all, terms[0]), terms[1:]
		}
		t := termView{Token: token, TokenText: v.Token.String()}
		if len(terms) > 0 && terms[0].Token == token {
			t, terms = terms[0], terms[1:]
		}
		t.Owner, t.Reactor, t.Granted, t.Ended = brief(string(v.Owner)), brief(string(v.Reactor)), v.GrantedAt, v.EndedAt
		if v.End != runstore.EndNone {
			t.End = v.End.String()
			if v.Reason != "" {
				t.End += ": " + brief(v.Reason)
			}
		}
		all = append(all, t)
	}
	return append(all, terms...)
}

// complete adds what is known of the term's end.
func (t *termView) complete(head runstore.Run, now time.Time, breaks map[int64]lease.BreakEntry) {
	entry, broken := breaks[t.Token]
	h := head.Holder
	switch {
	case broken:
		t.End, t.Level = "broken by "+brief(string(entry.Operator))+": "+brief(entry.Reason), levelWarn
	case t.End != "": // the store lists it
	case h.Token != 0 && int64(h.Token) == t.Token && head.Live(now):
		t.End = "current"
	case h.Token != 0 && int64(h.Token) == t.Token:
		t.End, t.Level = "current, expired", levelWarn
	case int64(head.Token) == t.Token:
		t.End = "released or revoked"
	case h.Token != 0 && int64(h.Token) == t.Token+1 && h.Former != runstore.EndNone:
		t.End = h.Former.String()
		if h.Preempted.Reason != "" {
			t.End += ": " + brief(h.Preempted.Reason)
		}
	}
}
