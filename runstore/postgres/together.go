package postgres

import "context"

// sendTogether sends parties in one statement and fills in their answers: all have
// one, but for those that are left out, or all have the error.
func (s *Store) sendTogether(ctx context.Context, parties []*party) {
	var args commitArgs
	u := &unit{}
	total := 0
	for _, p := range parties {
		total += appendsOf(p.group)
	}
	_, base := s.positions.current()
	spare := int64(maxGroupEvents-total) / int64(len(parties)) // for who comes later, see feed.go
	for _, p := range parties {
		for _, r := range p.group {
			r.sent = s.here.Read()
		}
		args.add(base, p.group)
		base += int64(appendsOf(p.group)) + spare
		u.groups, u.requests = append(u.groups, p.group), append(u.requests, p.group...)
	}
	u.read = u.readTogether
	u.form, u.sql, u.args = args.statement(form{together: true})
	_, err := s.ask(ctx, []*unit{u})
	// One may have spoilt it for all: then each goes alone.
	spoilt := err != nil && spoils(err) && ctx.Err() == nil
	for i, p := range parties {
		p.leftOut = spoilt || err == nil && !u.applied[i]
		for _, r := range p.group {
			r.err = err // nil, too: the request may still have the error of an attempt before
		}
	}
}
