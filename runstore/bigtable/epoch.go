package bigtable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// epochs is the state of the store as a whole. It is one cell, replaced by conditional mutations. Copies
// of it are spread over the table, so that creations and grants, which need the epoch, do not all read
// one row.
type epochs struct {
	// By is random, so that no two writers write the same value. It is encoded first, where a filter can
	// compare it: see written.
	By     uint64  `json:"by"`
	Format int     `json:"format,omitempty"` // of the store, see format.go
	Epochs []epoch `json:"epochs,omitempty"`
	// Incarnation names the table, its place and its backup as of the last epoch; see incarnation.
	Incarnation string `json:"incarnation"`
	// Ended is set when all grants of former epochs have ended.
	Ended  bool `json:"ended"`
	stored []byte
}

// written returns the range of values that only the write of x can have stored. A filter may have 20 KB,
// which a list of some ninety epochs exceeds, so the range is that of the prefix with By. Earlier
// programs encoded By last; then only the whole value is unique.
func (x *epochs) written() (from, to []byte) {
	from = x.stored
	if end := bytes.IndexByte(x.stored, ','); bytes.HasPrefix(x.stored, []byte(`{"by":`)) && end > 0 {
		from = x.stored[:end+1]
	}
	return from, append(slices.Clone(from), 0xff)
}

type epoch struct {
	Epoch  int64  `json:"epoch"`
	At     int64  `json:"at"`
	Reason []byte `json:"reason"`
	Base   int64  `json:"base"` // the number of its first page of the feed's log
	// End is the number of the page that ends the log of the epoch before, if Closed is set; otherwise a
	// number up to which that log was read.
	End    int64 `json:"end,omitempty"`
	Closed bool  `json:"closed,omitempty"`
}

// isBeginOf reports whether both are one epoch, of which the other may have been closed since.
func (e epoch) isBeginOf(other epoch) bool {
	return e.Epoch == other.Epoch && e.At == other.At && e.Base == other.Base && bytes.Equal(e.Reason, other.Reason)
}

func (x *epochs) current() int64 {
	if len(x.Epochs) == 0 {
		return 0
	}
	return x.Epochs[len(x.Epochs)-1].Epoch
}

// epochGap is how many pages an epoch's log begins above the end of the log before. 2^29: a hundred for each
// second since a backup that is 60 days old. 8,191 epochs use half of the 2^43 pages that positions allow.
const epochGap = 1 << 29

const epochCopies = 16

func (s *engine) readEpochs(ctx context.Context) (x *epochs, err error) {
	x = &epochs{}
	err = s.readList(ctx, []string{epochKey(0)}, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		x.stored = cell(r, familyOther, "")
		return decode(x.stored, x, &x.Format, "the store")
	})
	if err == nil {
		s.learnEpochs(x)
	}
	return x, err
}

// readRunAndEpoch reads a run and a copy of the epochs with one request.
func (s *engine) readRunAndEpoch(ctx context.Context, id runstore.RunID, more ...bigtable.Filter) (found *row, err error) {
	filter := latest(append([]bigtable.Filter{wholeFamily(familyHead), wholeFamily(familyOther)}, more...)...)
	found = &row{}
	copyKey := epochKey(rand.N(epochCopies))
	err = s.readList(ctx, []string{runKey(id), copyKey}, filter, func(r bigtable.Row) error {
		if r.Key() == copyKey {
			var x epochs
			err := decode(cell(r, familyOther, ""), &x, &x.Format, "the store")
			if err == nil {
				s.learnEpochs(&x)
			}
			return err
		}
		found, err = parseRow(r)
		return err
	})
	return found, err
}

// replaceEpochs replaces old by next, and reports false if another handle has replaced old.
func (s *engine) replaceEpochs(ctx context.Context, old, next *epochs) (replaced bool, err error) {
	next.By = rand.Uint64()
	next.stored, _ = json.Marshal(next) // numbers and bytes only: it cannot fail
	set := bigtable.NewMutation()
	set.Set(familyOther, "", 0, next.stored)
	from, to := old.written()
	replaced, repeated, err := s.applyIf(ctx, epochKey(0), "", from, to, set)
	switch {
	case err != nil && (repeated || !refusedByServer(err)):
		return false, outcome.Unknown(err)
	case err != nil || replaced:
		return replaced, err
	}
	now, err := s.readEpochs(ctx) // another handle was first, or a copy of this request
	if err != nil {
		return false, outcome.Unknown(err)
	}
	return string(now.stored) == string(next.stored), nil
}

// setEpochs replaces old by next, and then the copies, unless another handle has replaced old.
func (s *engine) setEpochs(ctx context.Context, old, next *epochs) error {
	replaced, err := s.replaceEpochs(ctx, old, next)
	if err != nil || !replaced {
		return err
	}
	return s.copyEpochs(ctx, next)
}

// isRestored separates the place of a table from the backup that it was restored from. No resource name
// of Google's contains it.
const isRestored = "/restored/"

// incarnation returns a name that changes when a backup is restored, as another table or in place of
// this one, and when the profile is moved to another cluster.
func (s *engine) incarnation() string {
	at := fmt.Sprintf("projects/%s/instances/%s/clusters/%s/tables/%s", s.opts.Project, s.opts.Instance, s.cluster, s.opts.Table)
	if s.restored != "" {
		at += isRestored + s.restored
	}
	return at
}

// unknownCluster is in an incarnation without the cluster.
const unknownCluster = "/clusters//"

// nameCluster adds this handle's cluster to the incarnation of x, unless another handle has replaced x
// meanwhile. The epoch stays: which cluster it began in is not known.
func (s *engine) nameCluster(ctx context.Context, x *epochs) error {
	next := *x
	next.Incarnation = s.incarnation()
	return s.setEpochs(ctx, x, &next)
}

// sameIncarnation reports whether the stored incarnation is this one. If one of them does not have the
// cluster, which not every account may read, any cluster matches.
func (s *engine) sameIncarnation(stored string) bool {
	if s.cluster == "" || strings.Contains(stored, unknownCluster) {
		tail := func(name string) string { return name[strings.Index(name, "/tables/"):] }
		head := func(name string) string { return name[:strings.Index(name, "/clusters/")] }
		own := s.incarnation()
		return strings.Contains(stored, "/clusters/") && strings.Contains(stored, "/tables/") &&
			tail(stored) == tail(own) && head(stored) == head(own)
	}
	return stored == s.incarnation()
}

// upgradeFormat raises the format of the store to this program's, see format.go, unless another handle
// has replaced x meanwhile.
func (s *engine) upgradeFormat(ctx context.Context, x *epochs) error {
	if x.Format < formatOpenPages { // from here on only programs of this format advance the hint
		hint, err := s.hint(ctx)
		if err == nil {
			err = s.advanceHint(ctx, hint)
		}
		if err != nil {
			return err
		}
	}
	next := *x
	next.Format = format
	return s.setEpochs(ctx, x, &next)
}

// ensureEpoch creates or upgrades the epochs, and raises the epoch if the table has another incarnation
// than when the epoch began: a table that was restored, and the cluster to which a failover moves the
// profile, may lack writes that were acknowledged.
func (s *engine) ensureEpoch(ctx context.Context) error {
	for {
		x, err := s.readEpochs(ctx)
		if err != nil {
			return err
		}
		switch {
		case x.stored == nil:
			if err := s.setEpochs(ctx, x, &epochs{Format: format, Incarnation: s.incarnation(), Ended: true}); err != nil {
				return err
			}
		case x.Format < format:
			if err := s.upgradeFormat(ctx, x); err != nil {
				return err
			}
		case !s.sameIncarnation(x.Incarnation):
			reason := "restored, copied or failed over: the table was " + x.Incarnation
			reason = reason[:min(len(reason), runstore.MaxOwner)]
			s.opts.Logger.Warn("bigtable: raising the epoch: the table was restored, copied or failed over", "was", x.Incarnation, "is", s.incarnation())
			if _, err := s.raise(ctx, reason, func(x *epochs) bool { return s.sameIncarnation(x.Incarnation) }); err != nil {
				return err
			}
		case !x.Ended: // the handle that raised it has crashed, or has not finished
			if err := s.finishRaise(ctx, x); err != nil {
				return err
			}
		case s.cluster != "" && strings.Contains(x.Incarnation, unknownCluster): // until now no failover was noticed
			if err := s.nameCluster(ctx, x); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// Epochs implements runstore.EpochManager.
func (s *engine) Epochs(ctx context.Context) (all []runstore.EpochChange, err error) {
	x, err := s.readEpochs(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range x.Epochs {
		all = append(all, runstore.EpochChange{Epoch: runstore.Epoch(e.Epoch), At: runstore.FromMicros(e.At), Reason: string(e.Reason)})
	}
	return all, nil
}

// RaiseEpoch implements runstore.EpochManager. It writes to every run, because only a run's own row can
// refuse a fence, so it takes time in proportion to the number of runs.
func (s *engine) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	return s.raise(ctx, reason, func(*epochs) bool { return false })
}

// raise begins a new epoch, unless done reports that another handle has reached the caller's aim.
func (s *engine) raise(ctx context.Context, reason string, done func(x *epochs) bool) (runstore.Epoch, error) {
	now, err := s.readServerClock(ctx, clockKey())
	if err != nil {
		return 0, err
	}
	for {
		x, err := s.readEpochs(ctx)
		if err != nil {
			return 0, err
		}
		if done(x) {
			return runstore.Epoch(x.current()), nil
		}
		if n := len(x.Epochs); n > 0 && !x.Ended && !x.Epochs[n-1].Closed {
			// Another handle is raising the epoch, or has died. Its log is closed first, so
			// that each log leads to the next.
			if _, err := s.closeLog(ctx, x); err != nil {
				return 0, err
			}
			continue
		}
		next := epoch{Epoch: x.current() + 1, At: runstore.Micros(now), Reason: []byte(reason)}
		if err := runstore.CheckEpoch(runstore.Epoch(next.Epoch)); err != nil {
			return 0, err
		}
		from := int64(firstPage)
		if n := len(x.Epochs); n > 0 {
			from = x.Epochs[n-1].Base
		}
		if hint, err := s.hint(ctx); err != nil {
			return 0, err
		} else if hint > from {
			from = hint
		}
		end, err := s.follow(ctx, from, func(*feedPage) bool { return true })
		if err != nil {
			return 0, err
		}
		next.Base = max(int64(runstore.Epoch(next.Epoch).Floor())>>positionBits+1, end+epochGap)
		next.End = end
		after := &epochs{Format: format, Epochs: append(x.Epochs, next), Incarnation: s.incarnation()}
		if s.cluster == "" && s.sameIncarnation(x.Incarnation) { // x may have the cluster
			after.Incarnation = x.Incarnation
		}
		replaced, err := s.replaceEpochs(ctx, x, after)
		if err != nil {
			return 0, err
		}
		if !replaced { // another handle was first, or has gone on from an epoch that a copy of this request began
			if after, err = s.readEpochs(ctx); err != nil {
				return 0, outcome.Unknown(err)
			}
			if !slices.ContainsFunc(after.Epochs, next.isBeginOf) {
				continue
			}
		}
		if err := s.finishRaise(ctx, after); err != nil {
			return 0, outcome.Unknown(err) // it was raised, but not every earlier grant has ended yet
		}
		return runstore.Epoch(next.Epoch), nil
	}
}

// finishRaise ends the log of the former epoch and every grant of former epochs. If it is interrupted,
// the next handle that opens the store calls it again.
func (s *engine) finishRaise(ctx context.Context, x *epochs) (err error) {
	for !x.Epochs[len(x.Epochs)-1].Closed {
		if x, err = s.closeLog(ctx, x); err != nil {
			return err
		}
	}
	s.learnEpochs(x)
	// A hint of the history that the store has lost is lower. A round that began there would append
	// where no reader looks.
	if err := s.advanceHint(ctx, x.Epochs[len(x.Epochs)-1].stamp()); err != nil {
		return err
	}
	if err := s.copyEpochs(ctx, x); err != nil { // from here on creations are in the new epoch
		return err
	}
	if err := s.scanPrefix(ctx, kindRun, func(keys []string) error { return s.endGrants(ctx, keys) }); err != nil {
		return err
	}
	done := *x
	done.Ended = true
	return s.setEpochs(ctx, x, &done) // another handle may have raised the epoch again
}

// raiseWorkers is how many runs a raise visits at the same time.
const raiseWorkers = 16

// endGrants ends the grants of runs, by the keys of their rows.
func (s *engine) endGrants(ctx context.Context, keys []string) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(raiseWorkers)
	for _, k := range keys {
		workers.Go(func() error {
			err := s.endGrant(ctx, runOf(k))
			if errors.Is(err, runstore.ErrCorrupt) && s.skipDamaged(runOf(k), err) {
				return nil // a damaged run accepts no write under any grant
			}
			return err
		})
	}
	return workers.Wait()
}

// endGrant ends a run's grant of an epoch before the newest that the handle knows.
func (s *engine) endGrant(ctx context.Context, id runstore.RunID) error {
	_, err := s.write(ctx, id, needs{fresh: true}, func(*cachedRun, time.Time) (*edit, error) {
		return nil, nil // every write raises the run first
	})
	return err
}

// copyEpochs writes the copies of the epochs. The timestamp is the epoch, so an older copy never hides a
// newer one.
func (s *engine) copyEpochs(ctx context.Context, x *epochs) error {
	all := make([]mutation, 0, epochCopies)
	for i := 1; i < epochCopies; i++ {
		m := bigtable.NewMutation()
		if x.current() > 0 { // to Bigtable, a range that ends at 0 has no end
			m.DeleteTimestampRange(familyOther, "", 0, timestampOf(x.current()))
		}
		m.Set(familyOther, "", timestampOf(x.current()), x.stored)
		all = append(all, mutation{epochKey(i), m, len(x.stored)})
	}
	return s.writeAll(ctx, all)
}
