package archive

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Writer writes one archive to a stream: a header, runs, and a close. It is not safe for concurrent
// use. After an error the archive is incomplete, and so is one without Close: readers refuse it.
type Writer struct {
	from    source
	out     *lineWriter
	epoch   runstore.Epoch // of the header
	counts  Counts
	pending Counts    // of the present run
	digest  hash.Hash // of the lines of the present run
	after   runstore.RunID
	run     runstore.RunID
	ended   string // the digest of the last run that ended
}

// NewWriter writes the header of an archive of runs of a store. label, up to 256 bytes, names the source
// for people; it must hold no password.
//
// Errors: ErrUnsupported if the store is no runstore.Mover; those of the store; those of out.
func NewWriter(ctx context.Context, store runstore.RunStore, out io.Writer, label string) (*Writer, error) {
	from, err := newSource(store)
	if err != nil {
		return nil, err
	}
	h, err := newHeader(ctx, store, label)
	if err != nil {
		return nil, err
	}
	return startWriter(from, out, h, Counts{})
}

// newHeader returns the header of a new archive of a store.
func newHeader(ctx context.Context, store runstore.RunStore, label string) (*header, error) {
	now, err := store.Now(ctx)
	if err != nil {
		return nil, err
	}
	h := &header{Format: Format, Archive: rand.Text(), Part: 1, Source: clip(label), Time: runstore.Micros(now)}
	return h, h.readEpochs(ctx, store)
}

// readEpochs sets the epochs to those of a store. A store without epochs stays in epoch 0.
func (h *header) readEpochs(ctx context.Context, store runstore.RunStore) error {
	manager, ok := runstore.As[runstore.EpochManager](store)
	if !ok {
		return nil
	}
	all, err := manager.Epochs(ctx)
	if err != nil {
		return err
	}
	h.Epochs = nil
	for _, change := range all {
		h.Epoch = max(h.Epoch, int64(change.Epoch))
		h.Epochs = append(h.Epochs, epoch{int64(change.Epoch), runstore.Micros(change.At), text(change.Reason)})
	}
	return nil
}

// startWriter writes the header of one file.
func startWriter(from source, out io.Writer, h *header, counts Counts) (*Writer, error) {
	w := &Writer{from: from, out: &lineWriter{to: out}, epoch: runstore.Epoch(h.Epoch), counts: counts}
	_, err := w.out.write(line{Header: h})
	return w, err
}

// ErrEpochRaised reports that the epoch of a store was raised during its export. An import would not
// accept the tokens of the new epoch, which the header of the archive does not name.
var ErrEpochRaised = errors.New("the epoch of the store was raised during the export: export anew")

// WriteRun writes one run of the store, in one state. It reports false and writes nothing that counts
// if there is no such run.
//
// Errors: ErrEpochRaised, after which nothing of the run is written; those of the store and of the
// stream.
func (w *Writer) WriteRun(ctx context.Context, id runstore.RunID) (found bool, err error) {
	found, err = w.from.walk(ctx, id, (*runWriter)(w))
	if err == nil {
		w.after = id
	}
	return found, err
}

// checkEpoch returns ErrEpochRaised if the store is in a later epoch than the header names. No run need have
// a token of it.
func (w *Writer) checkEpoch(ctx context.Context) error {
	var now header
	if err := now.readEpochs(ctx, w.from.store); err != nil {
		return err
	}
	if now.Epoch > int64(w.epoch) {
		return fmt.Errorf("the store is in epoch %d, the header names epoch %d: %w", now.Epoch, w.epoch, ErrEpochRaised)
	}
	return nil
}

// Digest returns the digest of the run that was written last, as in [RunState]; empty before the first.
func (w *Writer) Digest() string { return w.ended }

// Counts returns the numbers of what was written.
func (w *Writer) Counts() Counts { return w.counts }

// Close writes the last line. It does not close the stream.
func (w *Writer) Close() error { return w.close(true) }

func (w *Writer) close(last bool) error {
	_, err := w.out.write(line{Close: &closing{w.counts, text(w.after), last}})
	return err
}

// runWriter is the sink of a Writer.
type runWriter Writer

func (w *runWriter) head(_ context.Context, h head) error {
	if epoch := h.Token.Epoch(); epoch > w.epoch {
		return fmt.Errorf("run %q has a token of epoch %d, the header names epoch %d: %w", string(h.ID), epoch, w.epoch, ErrEpochRaised)
	}
	w.run, w.pending, w.digest = h.ID, Counts{Runs: 1}, sha256.New()
	return w.digested(line{Run: runLine(h)})
}

func (w *runWriter) record(_ context.Context, r runstore.PlacedRecord) error {
	w.pending.Records++
	return w.digested(line{Record: recordLine(r)})
}

func (w *runWriter) event(_ context.Context, e runstore.Event) error {
	w.pending.Events++
	return w.digested(line{Event: eventLine(e)})
}

func (w *runWriter) end(context.Context) error {
	w.ended = hex.EncodeToString(w.digest.Sum(nil))
	_, err := w.out.write(line{End: &end{text(w.run), w.pending.Records, w.pending.Events, w.ended}})
	w.counts.add(w.pending)
	return err
}

func (w *runWriter) discard(context.Context) error {
	_, err := w.out.write(line{Discard: &discard{text(w.run)}})
	return err
}

func (w *runWriter) digested(l line) error {
	body, err := w.out.write(l)
	addToDigest(w.digest, body)
	return err
}

// addToDigest adds a line without its sum to the digest of a run.
func addToDigest(digest hash.Hash, body []byte) {
	digest.Write(body)
	digest.Write([]byte{'\n'})
}

func (c *Counts) add(more Counts) {
	c.Runs += more.Runs
	c.Records += more.Records
	c.Events += more.Events
}

// lineWriter writes lines with their sums.
type lineWriter struct {
	to    io.Writer
	sum   string // of the last line
	bytes int64
}

// write writes a line and returns it without its sum.
func (w *lineWriter) write(l line) (body []byte, err error) {
	body, err = l.encode()
	if err != nil {
		return nil, err
	}
	w.sum = sumOf(w.sum, body)
	whole := append(body[:len(body):len(body)], sumKey+w.sum+sumEnd+"\n"...)
	n, err := w.to.Write(whole)
	w.bytes += int64(n)
	if err != nil {
		return body, fmt.Errorf("write the archive: %w", err)
	}
	return body, nil
}

// maxLabel bounds the label of a source.
const maxLabel = 256

// clip returns a label that is short enough, and that a JSON string holds unchanged.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxLabel)], "") }
