package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// RunState describes one state of a run.
type RunState struct {
	// Run is the head. From [ReadState] it has only what an archive keeps.
	Run runstore.Run
	// Digest is the digest of the run's lines in an archive of this state, wherever they stand: 64
	// hexadecimal digits. Two states with the same digest are archived alike.
	Digest string
	// Records and Events count what the run has.
	Records, Events int64
	// Changed is the time of the newest event and of the newest change of a record that exists, on the
	// clock of the store; the creation time of a run that has neither.
	Changed time.Time
}

// StateVisitor is called while a state is read. A nil function is not called. An error ends the reading,
// which returns it.
type StateVisitor struct {
	// Head is called at the start. It is called again if the run was changed while it was read: what
	// followed the call before is void.
	Head func(runstore.Run) error
	// Record is called for each record, in the order of the keys.
	Record func(runstore.PlacedRecord) error
}

// ReadRunState reads a run, as an export reads it, and returns its state. It reports false if there is
// no such run. Memory is bounded as for an export. It takes no lease and writes nothing.
//
// Errors: ErrUnsupported if the store is no runstore.Mover; those of the visitor and of the store.
func ReadRunState(ctx context.Context, store runstore.RunStore, id runstore.RunID, v StateVisitor) (state RunState, found bool, err error) {
	from, err := newSource(store)
	if err != nil {
		return RunState{}, false, err
	}
	reader := &stateReader{visitor: v}
	found, err = from.walk(ctx, id, reader)
	return reader.state, found, err
}

// ReadState reads an archive of one run to its end, checks every sum, and returns the state of the run.
//
// Errors: *DamageError for the first damage; ErrUnsupported for a newer format; ErrInvalid for an archive
// of another number of runs; those of reading.
func ReadState(ctx context.Context, s *Source) (RunState, error) {
	reader := &stateReader{}
	if _, err := s.read(ctx, nil, reader); err != nil {
		return RunState{}, err
	}
	if reader.ended != 1 {
		return RunState{}, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "archive", Problem: fmt.Sprintf("it has %d runs instead of one", reader.ended)}
	}
	return reader.state, nil
}

// stateReader is the sink that computes a state.
type stateReader struct {
	visitor StateVisitor
	state   RunState
	digest  hash.Hash
	ended   int
}

func (r *stateReader) head(_ context.Context, h head) error {
	r.state, r.digest = RunState{Run: h.Run, Changed: h.CreatedAt}, sha256.New()
	if err := r.add(line{Run: runLine(h)}); err != nil {
		return err
	}
	if r.visitor.Head == nil {
		return nil
	}
	return r.visitor.Head(h.Run)
}

func (r *stateReader) record(_ context.Context, rec runstore.PlacedRecord) error {
	r.state.Records++
	r.changed(rec.Updated.Time)
	if err := r.add(line{Record: recordLine(rec)}); err != nil {
		return err
	}
	if r.visitor.Record == nil {
		return nil
	}
	return r.visitor.Record(rec)
}

func (r *stateReader) event(_ context.Context, e runstore.Event) error {
	r.state.Events++
	r.changed(e.Time)
	return r.add(line{Event: eventLine(e)})
}

func (r *stateReader) end(context.Context) error {
	r.state.Digest = hex.EncodeToString(r.digest.Sum(nil))
	r.ended++
	return nil
}

func (r *stateReader) discard(context.Context) error { return nil }

func (r *stateReader) changed(at time.Time) {
	if at.After(r.state.Changed) {
		r.state.Changed = at
	}
}

func (r *stateReader) add(l line) error {
	body, err := l.encode()
	if err != nil {
		return err
	}
	addToDigest(r.digest, body)
	return nil
}
