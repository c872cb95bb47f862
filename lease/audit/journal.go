package audit

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// journal checks the journal of a run, event by event, and the stamps of records against it.
type journal struct {
	*checker
	run  *runState
	head runstore.Run

	n      runstore.Seq // the events read; the last has this seq
	broken bool         // the journal is not dense, and was not read further
	terms  int64
	top    runstore.Token // the highest token so far
	topSeq runstore.Seq   // of the first event under it
	owner  runstore.Owner // of that token
	last   time.Time      // of the last event
	latest time.Time      // the latest time of an event
	place  runstore.Position
	warned [4]bool // of each way in which times contradict the order
	// topStamp is the stamp with the highest token.
	topStamp stamp

	chain       uint64       // the hash of the events so far
	chainAtSeen uint64       // the hash at the last seq that the feed has shown
	differs     runstore.Seq // the first seq at which the feed differs, if that is known
}

// read reads the journal from its first event. The first reading checks the events; every reading
// checks a chunk of stamps, which are in the order of their seqs.
func (j *journal) read(ctx context.Context, stamps []stamp, first bool) error {
	if !first && len(stamps) == 0 {
		return nil
	}
	m := merge{journal: j, stamps: stamps}
	m.pass(0)
	for n := runstore.Seq(0); ; {
		page, err := j.store.ReadJournal(ctx, j.run.id, n+1, runstore.MaxPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			m.end(n)
			return nil
		}
		for _, e := range page {
			if e.Seq != n+1 {
				if first {
					j.broken = true
					j.add(j.run, Finding{Kind: KindSeq, Seq: n + 1, Problem: problem("the journal has seq %d where seq %d belongs", e.Seq, n+1)})
				}
				return nil
			}
			n++
			if first {
				j.event(e)
			}
			m.event(e)
		}
	}
}

// event checks the next event.
func (j *journal) event(e runstore.Event) {
	f := Finding{Seq: e.Seq}
	note := func(kind Kind, format string, args ...any) {
		f.Kind, f.Problem = kind, problem(format, args...)
		j.add(j.run, f)
	}
	holder := j.head.Holder
	switch {
	case e.Token < 0 || e.Token != 0 && e.Token.Counter() == 0:
		note(KindToken, "no grant has token %v", e.Token)
	case e.Token == 0 && e.Owner != "":
		note(KindOwner, "the event has owner %q and no token", string(e.Owner))
	case e.Token != 0 && e.Owner == "":
		note(KindOwner, "the event has token %v and no owner", e.Token)
	case e.Token != 0 && e.Token < j.top:
		note(KindToken, "token %v of %q follows token %v of %q at seq %d", e.Token, string(e.Owner), j.top, string(j.owner), j.topSeq)
	case e.Token != 0 && e.Token == j.top && e.Owner != j.owner:
		note(KindOwner, "token %v has the owners %q, at seq %d, and %q", e.Token, string(j.owner), j.topSeq, string(e.Owner))
	case e.Token != 0 && e.Token == holder.Token && e.Owner != holder.Owner:
		note(KindOwner, "token %v has the owners %q and %q, which holds the lease", e.Token, string(e.Owner), string(holder.Owner))
	}
	if e.Token > j.top {
		j.top, j.topSeq, j.owner = e.Token, e.Seq, e.Owner
		j.terms++
	}
	if e.Position != 0 {
		if e.Position <= j.place || e.Position > runstore.MaxPosition {
			note(KindFeed, "position %d follows position %d", e.Position, j.place)
		}
		j.place = max(j.place, e.Position)
	}
	j.times(e)
	j.n = e.Seq
	j.chain = j.extend(j.chain, e)
	if e.Seq == j.run.seen {
		j.chainAtSeen = j.chain
	}
	if i := int(e.Seq) - 1; i < len(j.run.chains) && j.chain != j.run.chains[i] && j.differs == 0 {
		j.differs = e.Seq
	}
}

// times checks the time of the next event. The run gets one warning for each way in which times
// contradict the order: a clock that was set back shifts the times of all that follows.
func (j *journal) times(e runstore.Event) {
	holder := j.head.Holder
	f, way := Finding{Kind: KindClock, Seq: e.Seq}, 0
	switch {
	case e.Time.Before(j.head.CreatedAt):
		f.Problem = problem("the event is of %v, and the run was created at %v", e.Time, j.head.CreatedAt)
	case e.Time.Before(j.last):
		way = 1
		f.Problem = problem("the event is of %v, and the one before of %v", e.Time, j.last)
	case holder.Token == 0 || holder.GrantedAt.IsZero() || e.Token == 0:
	case e.Token < holder.Token && e.Time.After(holder.GrantedAt):
		way = 2
		f.Problem = problem("the event under token %v is of %v, and token %v was granted at %v", e.Token, e.Time, holder.Token, holder.GrantedAt)
	case e.Token == holder.Token && e.Time.Before(holder.GrantedAt):
		way = 3
		f.Problem = problem("the event under token %v is of %v, and the token was granted at %v", e.Token, e.Time, holder.GrantedAt)
	}
	if f.Problem != "" && !j.warned[way] {
		j.warned[way] = true
		j.add(j.run, f)
	}
	j.last = e.Time
	if e.Time.After(j.latest) {
		j.latest = e.Time
	}
}

// merge walks along the journal and the stamps of records together.
//
// A stamp names the event that explains the change, or, for a change without an event, the last
// event before it. Either way the change came not before that event and not after the next one, so
// its token lies between the tokens of these. Equal times prove nothing more: an engine may give
// several commits of a run the same time.
type merge struct {
	*journal
	stamps []stamp
	passed int // the stamps up to here name an event that was read
	judged int // the stamps up to here were compared with the next token, too
	token  runstore.Token
}

// pass compares the stamps that name seq with the events up to it.
func (m *merge) pass(seq runstore.Seq) {
	for ; m.passed < len(m.stamps) && m.stamps[m.passed].Seq <= seq; m.passed++ {
		if st := m.stamps[m.passed]; st.Token != 0 && st.Token < m.token {
			m.note(st, KindRecord, "it was %s at seq %d under token %v, and an event up to there has token %v", st.name, st.Seq, st.Token, m.token)
		}
	}
}

// event takes the next event.
func (m *merge) event(e runstore.Event) {
	if e.Token != 0 {
		for ; m.judged < m.passed; m.judged++ {
			if st := m.stamps[m.judged]; st.Token > e.Token {
				m.note(st, KindRecord, "it was %s at seq %d under token %v, and the event at seq %d has token %v", st.name, st.Seq, st.Token, e.Seq, e.Token)
			}
		}
	}
	m.token = max(m.token, e.Token)
	before := m.passed
	for i := before - 1; i >= 0 && m.stamps[i].Seq == e.Seq-1; i-- {
		if st := m.stamps[i]; st.Time.After(e.Time) {
			m.note(st, KindClock, "it was %s at %v, and the next event is of %v", st.name, st.Time, e.Time)
		}
	}
	m.pass(e.Seq)
	for _, st := range m.stamps[before:m.passed] {
		if st.Time.Before(e.Time) {
			m.note(st, KindClock, "it was %s at %v, and the event that it names is of %v", st.name, st.Time, e.Time)
		}
	}
}

// end compares the remaining stamps with the journal, which ends at last.
func (m *merge) end(last runstore.Seq) {
	for _, st := range m.stamps {
		if st.Token > m.topStamp.Token {
			m.topStamp = st
		}
	}
	for _, st := range m.stamps[m.passed:] {
		m.note(st, KindRecord, "it was %s at seq %d, and the journal ends at seq %d", st.name, st.Seq, last)
	}
}

func (m *merge) note(st stamp, kind Kind, format string, args ...any) {
	m.add(m.run, Finding{Kind: kind, Key: st.key, Version: st.version, Problem: problem(format, args...)})
}
