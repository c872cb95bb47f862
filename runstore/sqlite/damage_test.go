package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// filled writes a closed database of six runs, "run" among them, and returns its path and
// the lease of "run". Each run has a record and an event in pages of their own.
func filled(t *testing.T) (path string, lease runstore.Lease) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tape.db")
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: embedded.NewHost()})
	if err != nil {
		t.Fatal(err)
	}
	lease = held(t, s, runstore.MaxTTL)
	for i := range 6 {
		id := runstore.RunID("run")
		if i > 0 {
			id = runstore.RunID(fmt.Sprintf("run-%d", i))
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
				t.Fatal(err)
			}
		}
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", payloadOf("event", id))
		b.Put("doc", payloadOf("record", id), runstore.Place{Index: "queue", At: runstore.After(0)})
		b.ID = "batch"
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path, lease
}

// payloadOf returns 3,000 bytes that occur once in the database.
func payloadOf(what string, id runstore.RunID) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("<%s of %s>", what, id)), 3000/(len(what)+len(id)+6))
}

const pageSize = 4096

// spoil changes the page that holds text.
func spoil(t *testing.T, path string, text []byte, change func(page []byte)) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(file, text)
	if at < 0 || bytes.Contains(file[at+1:], text) {
		t.Fatalf("%.20q does not stand in the file once", text)
	}
	at -= at % pageSize
	change(file[at : at+pageSize])
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

// openLogged opens a database with a log of its own.
func openLogged(t *testing.T, path string) (s *sqlite.Store, log *logBuffer, err error) {
	t.Helper()
	log = &logBuffer{}
	s, err = sqlite.Open(t.Context(), path, &sqlite.Options{
		Clock: embedded.NewHost(), Logger: slog.New(slog.NewTextHandler(log, nil)), Readers: 1, Synchronous: sqlite.Normal,
	})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, log, err
}

type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// step is a call of one method of the store on one run.
type step struct {
	name string
	do   func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error
}

var reads = []step{
	{"get run", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		_, err := s.GetRun(ctx, id)
		return err
	}},
	{"read journal", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		_, err := s.ReadJournal(ctx, id, 1, 10)
		return err
	}},
	{"read records", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		_, err := s.ReadRecords(ctx, id, runstore.RecordQuery{Limit: 10})
		return err
	}},
	{"scan index", func(ctx context.Context, s *sqlite.Store, _ runstore.RunID) error {
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
			if _, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 100}); err != nil {
				return err
			}
		}
		return nil
	}},
	{"read feed", func(ctx context.Context, s *sqlite.Store, _ runstore.RunID) error {
		_, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 100})
		return err
	}},
}

var writes = []step{
	{"commit", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", nil)
		b.Put("doc", []byte("new"))
		b.ID = runstore.NewBatchID()
		_, err := s.Commit(ctx, b)
		return err
	}},
	{"acquire lease", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
			Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "other", TTL: runstore.MaxTTL}, Preempt: "test",
		})
		return err
	}},
	{"create run", func(ctx context.Context, s *sqlite.Store, id runstore.RunID) error {
		_, err := s.CreateRun(ctx, runstore.RunSpec{ID: id + "-new"})
		return err
	}},
	{"raise epoch", func(ctx context.Context, s *sqlite.Store, _ runstore.RunID) error {
		_, err := s.RaiseEpoch(ctx, "test")
		return err
	}},
}

// TestDamage damages the page of one record. The store reports it, in its errors and once in its
// log; it refuses writes from then on and returns undamaged data.
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"a read", "a write"} {
		t.Run(first+" meets it first", func(t *testing.T) {
			t.Parallel()
			path, lease := filled(t)
			spoil(t, path, payloadOf("record", "run-5"), func(page []byte) { page[0] = 0xff })
			s, log, err := openLogged(t, path)
			if err != nil {
				t.Fatal(err)
			}
			if err := appendEvent(t, s, lease); err != nil {
				t.Errorf("append before the damage was met: %v", err)
			}
			meet := reads[2]
			if first == "a write" {
				meet = writes[0]
			}
			for range 2 {
				err := meet.do(t.Context(), s, "run-5")
				if !errors.Is(err, runstore.ErrCorrupt) || runstore.OutcomeOf(err) != runstore.NotApplied {
					t.Errorf("%s of the damaged run: got %v, want ErrCorrupt", meet.name, err)
				}
			}
			for _, s := range []*sqlite.Store{s, s.NewHandle()} {
				for _, write := range writes {
					err := write.do(t.Context(), s, "run-1")
					if !errors.Is(err, runstore.ErrCorrupt) || !strings.Contains(fmt.Sprint(err), path) {
						t.Errorf("%s: got %v, want ErrCorrupt that names the file", write.name, err)
					}
				}
				for _, read := range reads[:3] {
					if err := read.do(t.Context(), s, "run-1"); err != nil {
						t.Errorf("%s of a sound run: %v", read.name, err)
					}
				}
			}
			if n := eventsOf(t, s); n != 2 {
				t.Errorf("the run that was written before has %d events, want 2", n)
			}
			if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, path) {
				t.Errorf("got the log\n%swant one error that names the file", text)
			}
		})
	}
}

// TestDamageOfAGroup lets a write that meets the damage share its transaction with others.
// None of them is applied.
func TestDamageOfAGroup(t *testing.T) {
	t.Parallel()
	path, _ := filled(t)
	spoil(t, path, payloadOf("record", "run-5"), func(page []byte) { page[0] = 0xff })
	s, _, err := openLogged(t, path)
	if err != nil {
		t.Fatal(err)
	}
	const n = 10
	errs := grouped(t, s, path, n, func(i int) runstore.Batch {
		id := runstore.RunID("run")
		if i == n/2 {
			id = "run-5"
		}
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", nil)
		b.Put("doc", []byte("new"))
		return b
	})
	for i, err := range errs {
		if !errors.Is(err, runstore.ErrCorrupt) {
			t.Errorf("commit %d: got %v, want ErrCorrupt", i, err)
		}
	}
	if n := eventsOf(t, s); n != 1 {
		t.Errorf("got %d events, want 1: none of the group", n)
	}
}

// TestMissingEvents deletes an event of a journal directly in the file. A journal with a gap is
// never returned.
func TestMissingEvents(t *testing.T) {
	t.Parallel()
	for _, seq := range []int{1, 2, 3} {
		path := filepath.Join(t.TempDir(), "tape.db")
		s, _, err := openLogged(t, path)
		if err != nil {
			t.Fatal(err)
		}
		lease := held(t, s, runstore.MaxTTL)
		for range 3 {
			if err := appendEvent(t, s, lease); err != nil {
				t.Fatal(err)
			}
		}
		exec(t, path, fmt.Sprintf("DELETE FROM events WHERE seq = %d", seq))
		if events, err := s.ReadJournal(t.Context(), "run", 1, seq); !errors.Is(err, runstore.ErrCorrupt) {
			t.Errorf("without event %d: got %d events, %v, want ErrCorrupt", seq, len(events), err)
		}
		if err := appendEvent(t, s, lease); !errors.Is(err, runstore.ErrCorrupt) {
			t.Errorf("append after that: got %v, want ErrCorrupt", err)
		}
	}
}

// TestDamagedRows changes rows to values that no program of this package writes. The call that
// reads one fails, and leaves no other call waiting.
func TestDamagedRows(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"no row of the store": {"DELETE FROM store"},
		"a text for a number": {
			"PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'runs'",
			"UPDATE runs SET status = 'odd'",
		},
	} {
		for _, step := range []step{reads[0], writes[1]} {
			t.Run(name+", "+step.name, func(t *testing.T) {
				t.Parallel()
				path, _ := filled(t)
				s, log, err := openLogged(t, path)
				if err != nil {
					t.Fatal(err)
				}
				for _, statement := range statements { // each by a connection that reads the schema anew
					exec(t, path, statement)
				}
				for range 2 {
					if err := step.do(t.Context(), s, "run"); !errors.Is(err, runstore.ErrCorrupt) {
						t.Errorf("got %v, want ErrCorrupt", err)
					}
				}
				for _, want := range []string{"goroutine", "writes are refused"} {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log lacks %q: %s", want, log)
					}
				}
			})
		}
	}
}

// TestDamageOfEachPage spoils each page of a database in several ways. Whatever the store
// does with it, no call panics or hangs, no error invites the caller to repeat it, and
// after the first ErrCorrupt nothing is written.
func TestDamageOfEachPage(t *testing.T) {
	t.Parallel()
	path, _ := filled(t)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	met, readable := 0, 0
	for kind, change := range map[string]func(page []byte){
		"zero": func(page []byte) { clear(page) },
		"ones": func(page []byte) { page[0], page[1], page[3], page[5] = 0xff, 0xff, 0xff, 0xff },
		"content": func(page []byte) {
			for range 200 {
				page[pageSize/4+random.IntN(pageSize*3/4)] = byte(random.Uint32())
			}
		},
	} {
		for at := 0; at < len(sound); at += pageSize {
			spoilt := filepath.Join(t.TempDir(), "tape.db")
			file := bytes.Clone(sound)
			change(file[at : at+pageSize])
			if err := os.WriteFile(spoilt, file, 0o600); err != nil {
				t.Fatal(err)
			}
			copyFile(t, path+"-witness", spoilt+"-witness")
			what := fmt.Sprintf("page %d, %s", at/pageSize+1, kind)
			s, _, err := openLogged(t, spoilt)
			if err != nil {
				if kind := runstore.KindOf(err); kind != runstore.ErrCorrupt && kind != runstore.ErrInvalid {
					t.Errorf("%s: open: got %v, want ErrCorrupt or ErrInvalid", what, err)
				}
				if readOpenedReadOnly(t, what, spoilt) {
					readable++
				}
				continue
			}
			corrupt := false
			for _, id := range []runstore.RunID{"run", "run-1", "run-5"} {
				for _, step := range append(reads, writes[:3]...) {
					err := step.do(t.Context(), s, id)
					switch kind := runstore.KindOf(err); {
					case kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome:
						t.Errorf("%s: %s: got %v", what, step.name, err)
					case kind == runstore.ErrCorrupt:
						corrupt = true
					}
				}
			}
			if corrupt {
				met++
				if err := writes[3].do(t.Context(), s, ""); !errors.Is(err, runstore.ErrCorrupt) {
					t.Errorf("%s: write after ErrCorrupt: got %v", what, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Logf("%s: close: %v", what, err)
			}
		}
	}
	if met < 20 {
		t.Errorf("%d pages were met as damaged, want at least 20", met)
	}
	if readable == 0 {
		t.Error("no database that cannot be opened for writing can be opened read-only")
	}
}

// readOpenedReadOnly opens a damaged database read-only and reads it. It returns false if the opening fails.
func readOpenedReadOnly(t *testing.T, what, path string) bool {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{
		Clock: embedded.NewHost(), Logger: slog.New(slog.DiscardHandler), Readers: 1, ReadOnly: true,
	})
	if err != nil {
		if kind := runstore.KindOf(err); kind != runstore.ErrCorrupt && kind != runstore.ErrInvalid {
			t.Errorf("%s: open read-only: got %v, want ErrCorrupt or ErrInvalid", what, err)
		}
		return false
	}
	for _, step := range reads {
		err := step.do(t.Context(), s, "run")
		if kind := runstore.KindOf(err); kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome {
			t.Errorf("%s, read-only: %s: got %v", what, step.name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Logf("%s: close: %v", what, err)
	}
	return true
}
