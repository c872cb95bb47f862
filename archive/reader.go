package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// DamageError reports what is wrong with an archive, and where. It matches runstore.ErrCorrupt.
type DamageError struct {
	// File is the name of the file, "-" for a stream.
	File string
	// Line is the number of the line in the file, from 1.
	Line int
	// Problem describes what is wrong.
	Problem string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem)
}

// Unwrap makes the error match runstore.ErrCorrupt.
func (e *DamageError) Unwrap() error { return runstore.ErrCorrupt }

// fileReader reads one file of an archive, line by line, and checks the sums.
type fileReader struct {
	name string
	in   *bufio.Reader
	line int
	sum  string
}

func newFileReader(name string, in io.Reader) *fileReader {
	return &fileReader{name: name, in: bufio.NewReaderSize(in, 64<<10)}
}

func (r *fileReader) damage(format string, args ...any) error {
	return &DamageError{r.name, r.line, fmt.Sprintf(format, args...)}
}

// next returns the next line, with its body: the line without its sum.
func (r *fileReader) next() (l line, body []byte, err error) {
	r.line++
	raw, err := r.readLine()
	if err != nil {
		return l, nil, err
	}
	at := len(raw) - len(sumKey) - sumLength - len(sumEnd)
	if at < 0 || !bytes.HasPrefix(raw[at:], []byte(sumKey)) || !bytes.HasSuffix(raw, []byte(sumEnd)) {
		return l, nil, r.damage("the line has no sum at its end")
	}
	body = raw[:at]
	found := string(raw[at+len(sumKey) : len(raw)-len(sumEnd)])
	if want := sumOf(r.sum, body); found != want {
		return l, nil, r.damage("the sum is %.64q instead of %q: this line was changed, or lines before it are lost, added or moved", found, want)
	}
	r.sum = found
	if err := r.checkFormat(body); err != nil {
		return l, nil, err
	}
	d := json.NewDecoder(io.MultiReader(bytes.NewReader(body), bytes.NewReader([]byte("}"))))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, nil, r.damage("the line cannot be read: %v", err)
	}
	return l, body, nil
}

// readLine reads up to the next line break, which it leaves out.
func (r *fileReader) readLine() (whole []byte, err error) {
	for {
		part, err := r.in.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case len(whole) > maxLine:
			return nil, r.damage("the line has more than %d bytes", maxLine)
		case err == nil:
			return whole[:len(whole)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(whole) == 0:
			return nil, r.damage("the file ends here, before its last line: it was cut, or its export has not finished")
		case errors.Is(err, io.EOF):
			return nil, r.damage("the file ends in the middle of this line: it was cut, or its export has not finished")
		default:
			return nil, fmt.Errorf("read %s: %w", r.name, err)
		}
	}
}

// atEnd checks that nothing follows the last line.
func (r *fileReader) atEnd() error {
	r.line++
	switch _, err := r.in.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", r.name, err)
	}
	return r.damage("something follows the last line of the file")
}

// first reads the first line.
func (r *fileReader) first() (*header, error) {
	l, _, err := r.next()
	if err != nil {
		return nil, err
	}
	if l.Header == nil {
		return nil, r.damage("the first line is no header")
	}
	return l.Header, nil
}

// checkFormat returns ErrUnsupported if the body of the first line names a newer format, whose lines may have
// fields that this program does not know.
func (r *fileReader) checkFormat(body []byte) error {
	var l struct {
		Header struct {
			Format int `json:"format"`
		} `json:"header"`
	}
	if r.line > 1 || json.Unmarshal(slices.Concat(body, []byte("}")), &l) != nil || l.Header.Format <= Format {
		return nil
	}
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "archive", Problem: fmt.Sprintf(
		"%s has format %d, this program knows %d; use a newer program", r.name, l.Header.Format, Format)}
}

// header reads the first line. before is the header of the file before, nil for the first file, and sum
// the sum of its last line.
func (r *fileReader) header(before *header, sum string) (*header, error) {
	h, err := r.first()
	if err != nil {
		return nil, err
	}
	switch {
	case before == nil && h.Part != 1:
		return nil, r.damage("this is file %d of its archive; the files before it are missing", h.Part)
	case before != nil && h.Archive != before.Archive:
		return nil, r.damage("the file is of another archive than the file before it")
	case before != nil && h.Part != before.Part+1:
		return nil, r.damage("this is file %d of the archive, and file %d before it", h.Part, before.Part)
	case h.Previous != sum:
		return nil, r.damage("the file does not follow the last line of the file before it")
	}
	return h, nil
}

// runReader reads the lines of one file after the header, and passes the runs to a sink.
type runReader struct {
	*fileReader
	to     sink
	epoch  runstore.Epoch // of the file's header
	counts *Counts        // of all files

	head    *run // of the present run, nil between runs
	inRun   Counts
	digest  hash.Hash
	lastKey string
	token   int64
}

// read reads up to the close, and returns it.
func (r *runReader) read(ctx context.Context) (*closing, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l, body, err := r.next()
		if err != nil {
			return nil, err
		}
		if l.Close != nil {
			switch {
			case r.head != nil:
				return nil, r.damage("the file is closed before the end of run %q", string(r.head.ID))
			case l.Close.Counts != *r.counts:
				return nil, r.damage("the file counts %+v, and has %+v", l.Close.Counts, *r.counts)
			}
			return l.Close, r.atEnd()
		}
		if err := r.take(ctx, l, body); err != nil {
			return nil, err
		}
	}
}

// take passes one line of a run on.
func (r *runReader) take(ctx context.Context, l line, body []byte) error {
	switch {
	case l.Run != nil && r.head == nil:
		r.head, r.inRun, r.digest, r.lastKey, r.token = l.Run, Counts{Runs: 1}, sha256.New(), "", 0
		addToDigest(r.digest, body)
		if problem := l.Run.problem(); problem != "" {
			return r.damage("%s", problem)
		}
		if epoch := runstore.Token(l.Run.Token).Epoch(); epoch > r.epoch {
			return r.damage("the run has a token of epoch %d, and the header names epoch %d: the epoch of the source was raised during the export: export anew", epoch, r.epoch)
		}
		return r.to.head(ctx, l.Run.value())
	case r.head == nil:
		return r.damage("the line is outside of a run")
	case l.Record != nil && r.inRun.Events == 0:
		switch {
		case string(l.Record.Key) <= r.lastKey:
			return r.damage("the key %q follows the key %q", string(l.Record.Key), r.lastKey)
		case l.Record.Created.Token > r.head.Token || l.Record.Updated.Token > r.head.Token:
			return r.damage("the record has a token above that of its run")
		}
		r.lastKey = string(l.Record.Key)
		r.inRun.Records++
		addToDigest(r.digest, body)
		return r.to.record(ctx, l.Record.value())
	case l.Event != nil:
		r.inRun.Events++
		switch {
		case l.Event.Seq != r.inRun.Events || l.Event.Seq > r.head.LastSeq:
			return r.damage("seq %d stands where seq %d of %d belongs", l.Event.Seq, r.inRun.Events, r.head.LastSeq)
		case l.Event.Token > r.head.Token || l.Event.Token != 0 && l.Event.Token < r.token:
			return r.damage("the token of the event, %v, is below that of an event before it, or above that of its run", runstore.Token(l.Event.Token))
		}
		r.token = max(r.token, l.Event.Token)
		addToDigest(r.digest, body)
		return r.to.event(ctx, l.Event.value())
	case l.End != nil:
		digest := hex.EncodeToString(r.digest.Sum(nil))
		switch {
		case l.End.ID != r.head.ID:
			return r.damage("the end of run %q is inside of run %q", string(l.End.ID), string(r.head.ID))
		case l.End.Records != r.inRun.Records || l.End.Events != r.inRun.Events || r.inRun.Events != r.head.LastSeq:
			return r.damage("the run has %d records and %d events, and should have %d and %d", r.inRun.Records, r.inRun.Events, l.End.Records, r.head.LastSeq)
		case l.End.Digest != digest:
			return r.damage("the digest of run %q is %.64q instead of %q", string(r.head.ID), l.End.Digest, digest)
		}
		r.counts.add(r.inRun)
		r.head = nil
		return r.to.end(ctx)
	case l.Discard != nil && l.Discard.ID == r.head.ID:
		r.head = nil
		return r.to.discard(ctx)
	default:
		return r.damage("the line does not belong here, inside of run %q", string(r.head.ID))
	}
}

// problem returns what is wrong with a run's line, "" for nothing.
func (r *run) problem() string {
	switch {
	case r.ID == "" || len(r.ID) > runstore.MaxRunID:
		return fmt.Sprintf("the run's id has %d bytes, the limits are 1 and %d", len(r.ID), runstore.MaxRunID)
	case r.LastSeq < 0 || r.Token < 0 || r.Floor < 0:
		return "a number of the run is negative"
	case runstore.Status(r.Status) == StatusImporting:
		return "the import of the run into the source had not finished"
	}
	return ""
}
