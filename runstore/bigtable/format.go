package bigtable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// format is the newest format that this program reads and writes. A program that stores
// anything which an older one would misread, or drop when it rewrites it, uses a higher
// number in two places:
//
//   - The head of each run that it writes so. Every write decodes the head that it
//     replaces, or decoded it before and then replaces that very revision. So a handle of an
//     older program refuses the run from that write on, also if it was open before.
//   - The epochs' row, before the first such write. An older program that opens the
//     store is refused at once; one that is open cannot create runs or acquire leases any
//     more, because it reads a copy of that row for these.
//
// 0 stands for 1. A field that this program does not know counts as a newer format.
const format = 5

// formatStamps is the format of runs whose cells have the stamp of an epoch, see stamp.go. A
// run of the first epoch has none.
const formatStamps = 2

// formatGrants is the format of runs whose head or records have what format 2 lacks: the
// times, the bound and the progress of a grant, the tokens of records, results of requests
// with a grant id, and runs that are not listed. A program of format 2 would drop or misread
// these. The store has this format from the first opening on by a program that knows it.
const formatGrants = 3

// formatRunnableEntries is the format of runs whose entry in IndexRunnable stands behind RunnableAt, or may
// be moved by a scan (runnable.go). A program of format 3 would delete such an entry.
const formatRunnableEntries = 4

// formatCold is the format of runs some of whose records have left the row, see cold.go. A program
// of format 3 would take them for absent. No release knows one of the two and not the other.
const formatCold = formatRunnableEntries

// formatOpenPages is the format of runs whose events may be in a page of the feed's log, see page.go. A
// program of format 4 would not find them there, and name them again.
const formatOpenPages = 5

// requires raises the format of a run's head.
func (h *head) requires(format int) { h.Format = max(h.Format, format) }

// decode decodes JSON into v. of is the field of v that holds the format.
//
// Errors: ErrUnsupported for a newer format, ErrCorrupt for what is no such JSON.
func decode(b []byte, v any, of *int) error {
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	unknown := strict.Decode(v)
	if unknown != nil {
		if err := json.Unmarshal(b, v); err != nil {
			return corrupt(err)
		}
	}
	if *of > format || unknown != nil {
		return errFormat{max(*of, format), unknown}
	}
	return nil
}

// errFormat is met where stored data have a format that this program does not know.
type errFormat struct {
	found   int
	unknown error // what the decoder says of a field that is not known, or nil
}

func (e errFormat) Error() string { return e.of("it").Error() }
func (e errFormat) Unwrap() error { return e.of("it") }

// of returns the error for what has the format.
func (e errFormat) of(what string) *runstore.InputError {
	problem := fmt.Sprintf("%s has format %d, this program knows %d", what, e.found, format)
	if e.unknown != nil {
		problem += fmt.Sprintf(" (%v)", e.unknown)
	}
	return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "format", Problem: problem + "; use a newer program"}
}

// decode decodes the epochs' row, which carries the format of the store.
func (x *epochs) decode(b []byte) error {
	err := decode(b, x, &x.Format)
	var newer errFormat
	if errors.As(err, &newer) {
		return newer.of("the store")
	}
	return err
}

// corrupt says that stored data cannot be decoded. ofRun adds the run.
func corrupt(cause error) error { return &runstore.CorruptError{Cause: cause} }

var errNoHead = corrupt(errors.New("the row has no head"))

// ofRun names the run in an error that is about its data.
func ofRun(id runstore.RunID, err error) error {
	var damage *runstore.CorruptError
	if errors.As(err, &damage) && damage.Run == "" {
		return &runstore.CorruptError{Run: id, Cause: damage.Cause}
	}
	var newer errFormat
	if errors.As(err, &newer) {
		return newer.of(fmt.Sprintf("run %q", id))
	}
	return err
}

// isUndecodable reports whether err is about stored data, which a repeat finds as they are.
func isUndecodable(err error) bool {
	return errors.Is(err, runstore.ErrCorrupt) || errors.Is(err, runstore.ErrUnsupported)
}

// maxReported bounds the runs that a handle remembers as reported.
const maxReported = 1024

// unlessSkipped returns err, or nil where the pass goes on without the run.
func (s *engine) unlessSkipped(id runstore.RunID, err error) error {
	if err == nil || s.skipDamaged(id, err) {
		return nil
	}
	return err
}

// skipDamaged reports whether a pass over many runs goes on without this one, because its data
// cannot be decoded. It logs that once for each run, or for the store itself if id is empty.
func (s *engine) skipDamaged(id runstore.RunID, err error) bool {
	if !isUndecodable(err) {
		return false
	}
	s.reported.mu.Lock()
	defer s.reported.mu.Unlock()
	if s.reported.runs[id] {
		return true
	}
	if s.reported.runs == nil || len(s.reported.runs) >= maxReported {
		s.reported.runs = map[runstore.RunID]bool{}
	}
	s.reported.runs[id] = true
	s.opts.Logger.Error("bigtable: a run is passed over: its data cannot be decoded", "run", string(id), "error", ofRun(id, err))
	return true
}
