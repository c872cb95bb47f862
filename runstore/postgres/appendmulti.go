package postgres

import "context"

// appendMulti sends groups of different runs in one statement. It fills in the results of the
// groups that were applied and sets leftOut on the others. On an error that concerns the whole
// statement every request has that error.
func (e *engine) appendMulti(ctx context.Context, groups []*runGroup) {
	var args commitArgs
	st := &statement{}
	total := 0
	for _, g := range groups {
		total += appendsOf(g.group)
	}
	_, base := e.positions.current()
	st.base = new(base)
	spare := int64(maxGroupEvents-total) / int64(len(groups)) // gaps between the runs' positions, for a later append of the same run in the same slot (feed.go)
	for _, g := range groups {
		for _, r := range g.group {
			r.sent = e.clock.Read()
		}
		args.add(base, g.group)
		base += int64(appendsOf(g.group)) + spare
		st.groups, st.requests = append(st.groups, g.group), append(st.requests, g.group...)
	}
	st.read = st.readCommitted
	st.sql, st.args = args.statement(form{multi: true})
	_, err := e.roundTrip(ctx, []*statement{st})
	// One group may have caused the error for all. Then each is sent by itself.
	spoilt := err != nil && isolatable(err) && ctx.Err() == nil
	for i, g := range groups {
		g.leftOut = spoilt || err == nil && !st.applied[i]
		for _, r := range g.group {
			r.err = err
			// Several batches of a run may only have met a locked row. They are sent as one statement again.
			r.byFunction = r.byFunction || err == nil && !st.applied[i] && len(g.group) == 1
		}
	}
}
