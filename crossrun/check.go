package crossrun

import (
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// check returns an error for input that no engine could apply, or that an engine without
// runstore.MultiCommitter could not: the limits are the same on all engines.
func check(lead, other runstore.Batch) error {
	if err := lead.Check(); err != nil {
		return fmt.Errorf("lead: %w", err)
	}
	if err := other.Check(); err != nil {
		return fmt.Errorf("other: %w", err)
	}
	og := other.Guards()
	switch {
	case lead.Guards().Fence.IsZero():
		return invalid("lead.fence", "is missing; a step is led under a lease")
	case lead.Run() == other.Run():
		return invalid("other.run", "is the lead itself; one batch does it")
	case !og.Fence.IsZero():
		return invalid("other.fence", "is not possible: a fence cannot be written ahead; guard versions or the seq")
	case lead.Guards().Token != nil:
		return invalid("lead.guards: token", "is not possible: a step has no guard of the token; the lead's fence holds only under its own token")
	case og.Token != nil:
		return invalid("other.guards: token", "is not possible: a step has no guard of the token; guard versions or the seq")
	case len(og.Versions) == 0 && og.NextSeq == 0:
		return invalid("other.guards", "has no version and no seq; the other run is guarded by at least one")
	case other.ID != "":
		return invalid("other.id", "is not possible; the lead's id is the step's")
	case lead.Purge || other.Purge:
		return invalid("purge", "is no part of a step")
	}
	for _, part := range []struct {
		name  string
		batch runstore.Batch
	}{{"lead", lead}, {"other", other}} {
		if err := checkRoom(part.name, part.batch); err != nil {
			return err
		}
	}
	in := intentOf(lead, other, runstore.BatchID(strings.Repeat("x", runstore.MaxGrantID)))
	if n := len(in.encode()); n > runstore.MaxRecordValue {
		return tooLarge("intent", "%d bytes to write both runs' changes ahead, the limit is %d", n, runstore.MaxRecordValue)
	}
	return nil
}

// ownGuards is the number of guards that a step adds to each batch.
const ownGuards = 2

// checkRoom checks that each batch leaves room for the record and the guards that the step adds,
// and that it does not use reserved keys.
func checkRoom(name string, b runstore.Batch) error {
	g := b.Guards()
	if n := len(g.Versions) + len(g.Statuses); n > runstore.MaxGuards-ownGuards {
		return tooLarge(name+".guards", "%d guards, the limit is %d beside the step's own", n, runstore.MaxGuards-ownGuards)
	}
	if n := len(b.Records); n > runstore.MaxRecordWrites-1 {
		return tooLarge(name+".records", "%d records, the limit is %d beside the step's own", n, runstore.MaxRecordWrites-1)
	}
	for i, v := range g.Versions {
		if reserved(v.Key) {
			return invalid(fmt.Sprintf("%s.guards: versions[%d]", name, i), "a key that begins with %q belongs to package crossrun", Reserved)
		}
	}
	for i, r := range b.Records {
		if reserved(r.Key) {
			return invalid(fmt.Sprintf("%s.records[%d].key", name, i), "a key that begins with %q belongs to package crossrun", Reserved)
		}
		if len(r.Reserve) > 0 {
			return invalid(fmt.Sprintf("%s.records[%d].reserve", name, i), "is no part of a step")
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}

func tooLarge(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: field, Problem: fmt.Sprintf(format, args...)}
}
