package tape

import (
	"context"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Grant is the part of a lease that is sent to the driver of a run and back: BeginRun and ResumeRun
// return it and a write presents it.
type Grant struct {
	// Run may be empty if the grant is presented with a write to the run itself.
	Run   runstore.RunID
	Owner string
	Token int64
	ID    string
}

// GrantOf returns the grant of a lease.
func GrantOf(l runstore.Lease) Grant {
	return Grant{Run: l.Run, Owner: string(l.Owner), Token: int64(l.Token), ID: string(l.Grant)}
}

// Fence returns the fence that a write to run presents under g. A grant of another run, or one that
// no store can have issued, yields an error that matches runstore.ErrInvalid or
// runstore.ErrTooLarge. Fence does not check that the grant is current: the store does, with the
// write.
func (g Grant) Fence(run runstore.RunID) (runstore.Fence, error) {
	if err := checkRun(run); err != nil {
		return runstore.Fence{}, err
	}
	if g.Run != "" && g.Run != run {
		return runstore.Fence{}, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "fence.run_id", Problem: "names another run than the request",
		}
	}
	if g.Token <= 0 {
		return runstore.Fence{}, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "fence.token", Problem: "is not positive; present all of the grant or nothing",
		}
	}
	if err := checkName("fence.owner", g.Owner, runstore.MaxOwner); err != nil {
		return runstore.Fence{}, err
	}
	if err := checkName("fence.grant_id", g.ID, runstore.MaxGrantID); err != nil {
		return runstore.Fence{}, err
	}
	return runstore.Lease{
		Run: run, Owner: runstore.Owner(g.Owner), Token: runstore.Token(g.Token), Grant: runstore.GrantID(g.ID),
	}.Fence(), nil
}

// internalRuns are the prefixes of the ids of this package's own runs: of values, sessions, business
// keys, shards of reactions and the server. The id of a run that BeginRun creates is a UUID.
var internalRuns = []string{"value/", "session/", "business/", "reaction/", "server/"}

// isInternal reports whether a run is one of this package's own. To callers there is no such run.
func isInternal(run runstore.RunID) bool {
	return slices.ContainsFunc(internalRuns, func(prefix string) bool { return strings.HasPrefix(string(run), prefix) })
}

// admit returns an error for a run that no caller may write to, for a fence of another run, and for
// an absent fence if the method requires one.
func (t *Tape) admit(method string, run runstore.RunID, f runstore.Fence) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if isInternal(run) {
		return ErrNoSuchRun
	}
	if !f.IsZero() && f.Run() != run {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "fence", Problem: "is for another run than run_id"}
	}
	return t.require(method, f)
}

// require returns ErrFenceRequired for an absent fence if the method requires one.
func (t *Tape) require(method string, f runstore.Fence) error {
	switch {
	case !f.IsZero() || authorities[method] != Driver:
		return nil
	case t.mode == FenceConnection:
		return refuse(ErrFenceRequired,
			"this connection holds no grant of the run: call BeginRun on it, or present the grant that it answered")
	case t.mode == FenceRequired:
		return refuse(ErrFenceRequired,
			"this server takes fenced writes only: present the grant that BeginRun or ResumeRun answered")
	default:
		return nil
	}
}

// guards returns a batch that is guarded by first and, if there is one, by the fence.
func guards(run runstore.RunID, f runstore.Fence, first runstore.Guard) runstore.Batch {
	b := runstore.NewBatch(run, first)
	if !f.IsZero() {
		b.Require(f)
	}
	return b
}

// confirm ends an operation that found nothing to write. Without a fence it does nothing. With a
// fence it commits a batch that has the fence as its only guard and no writes, so that a zombie
// gets ErrFenced. Comparing tokens here instead would leave a gap after the comparison. Only
// replays pay this second round trip.
func (t *Tape) confirm(ctx context.Context, f runstore.Fence) error {
	if f.IsZero() {
		return nil
	}
	_, err := optimistic.Repeat(ctx, func() (runstore.Committed, error) {
		return t.store.Commit(ctx, runstore.NewBatch(f.Run(), f))
	})
	return noSuchRun(err)
}
