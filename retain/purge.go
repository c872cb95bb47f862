package retain

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// maxVersions is the number of records whose versions guard a purge. 250 of the contract's 256 guards:
// the status and the step over two runs take two more.
const maxVersions = 250

// purgeTries is how often a purge is tried while its outcome is unknown. Engines retry first.
const purgeTries = 3

// lookTimeout bounds the look at a run after the context has ended, 5 s: a slow read takes a tenth.
const lookTimeout = 5 * time.Second

// recordSum is a digest of the keys and versions of records that were added in the order of the keys.
type recordSum [sha256.Size]byte

func (s *recordSum) add(r runstore.PlacedRecord) {
	b := binary.BigEndian.AppendUint64(s[:], uint64(r.Version))
	*s = sha256.Sum256(append(b, r.Key...))
}

// sweep deletes the marks that crashed steps over two runs have left on a run that is kept because of
// one. It returns the reason for keeping the run: the next pass finds it without them.
func (p *pass) sweep(ctx context.Context, id runstore.RunID, err error) error {
	var kept keptError
	if !errors.As(err, &kept) || !kept.mark || p.opts.DryRun {
		return err
	}
	if _, failed := crossrun.Sweep(ctx, p.store, id); failed != nil && !errors.Is(failed, runstore.ErrNotFound) {
		return fmt.Errorf("sweep the marks of steps over two runs: %w", failed)
	}
	return err
}

// archive makes sure that the target has a complete object with the state, and has read it to its end.
// It returns false if the run is gone.
func (p *pass) archive(ctx context.Context, c candidate, name string) (found bool, err error) {
	digest, err := p.readBack(ctx, name)
	switch {
	case err == nil && digest == c.Digest:
		// A process that died may have left the object before its name was durable.
		if s, ok := p.opts.Archive.(Syncer); ok {
			if err := s.Sync(name); err != nil {
				return false, fmt.Errorf("sync %s: %w", name, err)
			}
		}
		p.report.Reused++
		return true, nil
	case err == nil: // the name has the digest, so this is not what an earlier pass wrote under it
		return false, fmt.Errorf("%s has an intact archive of another state (digest %.16s…), which is not replaced: does every name lead to the same object?", name, digest)
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, runstore.ErrCorrupt):
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	found = true
	err = p.opts.Archive.Write(ctx, name, func(out io.Writer) error {
		w, err := archive.NewWriter(ctx, p.store, out, p.opts.Label)
		if err != nil {
			return err
		}
		if found, err = w.WriteRun(ctx, c.Run.ID); err != nil {
			return err
		}
		if !found || w.Digest() != c.Digest {
			return keptError{reason: KeptChanged} // nothing is written
		}
		return w.Close()
	})
	if !found && errors.As(err, new(keptError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write %s: %w", name, err)
	}
	if digest, err = p.readBack(ctx, name); err == nil && digest != c.Digest {
		err = fmt.Errorf("its digest is %.16s… instead of %.16s…", digest, c.Digest)
	}
	if err != nil {
		return false, fmt.Errorf("read back %s, which was written: %w", name, err)
	}
	p.report.Archived++
	return true, nil
}

// readBack reads an object, checks all its sums, and returns the digest of its run.
func (p *pass) readBack(ctx context.Context, name string) (string, error) {
	in, err := p.opts.Archive.Open(ctx, name)
	if err != nil {
		return "", err
	}
	state, err := archive.ReadState(ctx, archive.Stream(name, in))
	if err = errors.Join(err, in.Close()); err != nil {
		return "", err
	}
	return state.Digest, nil
}

// purge purges a run if it is still in the state that was read. It returns false if the run is gone.
func (p *pass) purge(ctx context.Context, c candidate) (done bool, err error) {
	b := runstore.NewBatch(c.Run.ID, runstore.AtToken(c.Run.Token), runstore.AtSeq(c.Run.LastSeq+1), runstore.InStatus(c.Run.Status), crossrun.Idle())
	b.Require(c.versions...)
	b.Purge = true
	for try := 1; ; try++ {
		if found, err := p.unchanged(ctx, c); err != nil || !found {
			return try > 1 && err == nil, unresolved(c, try, err) // a purge of unknown outcome was applied
		}
		_, err = p.store.Commit(ctx, b)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, runstore.ErrNotFound):
			return try > 1, nil
		case errors.Is(err, runstore.ErrConflict):
			return false, keptError{reason: KeptChanged}
		case runstore.OutcomeOf(err) == runstore.NotApplied:
			return false, unresolved(c, try, err)
		}
		if applied, known := p.applied(ctx, c); applied {
			return true, nil
		} else if !known || ctx.Err() != nil || try == purgeTries {
			return false, err
		}
	}
}

// unresolved returns err, the error of a try to purge. After a try of unknown outcome, which may still be
// applied, the outcome stays unknown, unless the run was found in another state.
func unresolved(c candidate, try int, err error) error {
	if err == nil || try == 1 || errors.As(err, new(keptError)) {
		return err
	}
	return &runstore.OpError{Op: "purge", Run: c.Run.ID, Err: runstore.ErrUnknownOutcome, Cause: err}
}

// applied looks whether a purge of unknown outcome was applied, also after ctx has ended. known is false
// if the store does not answer.
func (p *pass) applied(ctx context.Context, c candidate) (applied, known bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	head, err := p.store.GetRun(ctx, c.Run.ID)
	gone := errors.Is(err, runstore.ErrNotFound)
	return gone || err == nil && !head.CreatedAt.Equal(c.Run.CreatedAt), gone || err == nil
}

// unchanged reads the run once more, and returns a keptError if it is in another state than the one that
// was read. It finds what the guards of a batch cannot express: a new record, more records than a batch
// can guard, a run of the same id that was created since, a lease that was renewed late.
func (p *pass) unchanged(ctx context.Context, c candidate) (found bool, err error) {
	changed := keptError{reason: KeptChanged}
	head, err := p.store.GetRun(ctx, c.Run.ID)
	switch {
	case errors.Is(err, runstore.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case !head.CreatedAt.Equal(c.Run.CreatedAt) || p.opts.judge(head, p.now) != nil:
		return false, changed
	}
	var sum recordSum
	for after := runstore.RecordKey(""); ; {
		page, err := p.mover.ReadPlaced(ctx, c.Run.ID, after, runstore.MaxPage)
		if errors.Is(err, runstore.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(page.Records) == 0 {
			if sum != c.records {
				return false, changed
			}
			return true, nil
		}
		for _, r := range page.Records {
			sum.add(r)
			after = r.Key
		}
	}
}
