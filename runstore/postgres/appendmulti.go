package postgres

import "context"

// sendTogether sends parties in one statement and fills in their answers: all have
// one, but for those that are left out, or all have the error.
func (s *Store) appendMulti(ctx context.Context, groups []*runGroup) {
	var args commitArgs
	st := &statement{}
	total := 0
	for _, g := range groups {
		total += appendsOf(g.group)
	}
	_, base := s.positions.current()
	spare := int64(maxGroupEvents-total) / int64(len(groups)) // for who comes later, see feed.go
	for _, g := range groups {
		for _, r := range g.group {
			r.sent = s.clock.Read()
		}
		args.add(base, g.group)
		base += int64(appendsOf(g.group)) + spare
		st.groups, st.requests = append(st.groups, g.group), append(st.requests, g.group...)
	}
	st.read = st.readMulti
	st.form, st.sql, st.args = args.statement(form{multi: true})
	_, err := s.roundTrip(ctx, []*statement{st})
	// One may have spoilt it for all: then each goes alone.
	spoilt := err != nil && isolatable(err) && ctx.Err() == nil
	for i, g := range groups {
		g.leftOut = spoilt || err == nil && !st.applied[i]
		for _, r := range g.group {
			r.err = err // nil, too: the request may still have the error of an attempt before
		}
	}
}
