package audit

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// readTerms reads the terms that a store keeps of a run, none if it keeps none. It runs between the
// two readings of the run's head.
func (c *checker) readTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	reader, ok := runstore.As[runstore.TermReader](c.store)
	if !ok {
		return nil, nil
	}
	return reader.ReadTerms(ctx, id)
}

// checkTerms checks that the terms of a run do not overlap, and that they agree with its head. Terms
// may be missing, and times be zero, because a program that keeps no terms made grants.
func (c *checker) checkTerms(r *runState, terms []runstore.Term, head, after runstore.Run) {
	mark := int64(200)
	note := func(bad bool, kind Kind, format string, args ...any) {
		if bad {
			c.add(r, Finding{Kind: kind, Problem: problem(format, args...), mark: mark})
		}
		mark++
	}
	for i, v := range terms {
		note(v.Token > after.Token, KindTerm, "token %v has a term, and the last token is %v", v.Token, after.Token)
		note(v.Owner == "", KindTerm, "the term of token %v has no owner", v.Token)
		note(!v.EndedAt.IsZero() && v.EndedAt.Before(v.GrantedAt), KindClock,
			"the term of token %v began at %v and ended at %v", v.Token, v.GrantedAt, v.EndedAt)
		if i+1 == len(terms) {
			break
		}
		next := terms[i+1]
		known := !v.EndedAt.IsZero() && !next.GrantedAt.IsZero()
		// These ends are the next grant itself.
		byNext := v.End == runstore.EndHandedOff || v.End == runstore.EndExpired || v.End == runstore.EndPreempted
		switch {
		case next.Token <= v.Token:
			note(true, KindTerm, "the term of token %v is before that of token %v", v.Token, next.Token)
		case v.End == runstore.EndNone:
			note(true, KindTerm, "the term of token %v has not ended, and token %v was granted", v.Token, next.Token)
		case known && byNext && next.Token == v.Token+1 && !v.EndedAt.Equal(next.GrantedAt):
			note(true, KindTerm, "the term of token %v was %v at %v, and token %v was granted at %v", v.Token, v.End, v.EndedAt, next.Token, next.GrantedAt)
		case known && v.EndedAt.After(next.GrantedAt):
			note(true, KindClock, "the term of token %v ended at %v, and token %v was granted at %v", v.Token, v.EndedAt, next.Token, next.GrantedAt)
		}
	}
	if len(terms) == 0 || head.Token != after.Token || head.Holder.Token != after.Holder.Token {
		return // the lease changed hands meanwhile
	}
	last, h := terms[len(terms)-1], after.Holder
	switch held := h.Token == after.Token; {
	case last.Token != after.Token:
	case held != (last.End == runstore.EndNone):
		note(true, KindTerm, "the term of the last token, %v, was %v, and the lease is held under token %v", last.Token, last.End, h.Token)
	case held && (last.Owner != h.Owner || last.Reactor != h.Reactor):
		note(true, KindTerm, "the term of token %v is that of %q, and the holder is %q", last.Token, string(last.Owner), string(h.Owner))
	}
}
