package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A grant that waits for the row while the lease, which had expired, is released shows it as released,
// at the time of the release.
func TestTermOfALeaseThatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	other, acquire, _ := released(t)
	exec(t, other, `UPDATE tapestore.runs SET grant_state = 1, ended = NULL, expires = clock_timestamp() - interval '1 minute'`)
	exec(t, other, `COMMIT`)
	exec(t, other, `BEGIN`)
	exec(t, other, `UPDATE tapestore.runs SET grant_state = 2, ended = clock_timestamp()`)
	ended := get[time.Time](t, other, `SELECT ended FROM tapestore.runs`)
	answer := acquire("mine")
	exec(t, other, "COMMIT")
	granted, err := answer()
	if err != nil || granted.Former != runstore.EndReleased {
		t.Fatalf("got %+v, %v, want a grant after a release", granted, err)
	}
	if got := get[time.Time](t, other, `SELECT (terms[1]).ended FROM tapestore.grants`); !got.Equal(ended) {
		t.Errorf("the term ended at %v, want %v", got, ended)
	}
}

// A release has the time of its statement, in its reply and in the term.
func TestTermOfARelease(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	conn := connect(t, address)
	before := get[time.Time](t, conn, `SELECT clock_timestamp()`)
	done, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
	if err != nil {
		t.Fatal(err)
	}
	terms, err := s.ReadTerms(t.Context(), "run")
	if err != nil || len(terms) != 1 || terms[0].EndedAt.Before(before) || !terms[0].EndedAt.Equal(done.Time) {
		t.Errorf("got %+v, %v, want an end at %v, after %v", terms, err, done.Time, before)
	}
}

// The terms of a run take at most 4 KiB, by whichever statement its grants are made.
func TestTermsAreBounded(t *testing.T) {
	t.Parallel()
	for _, preempt := range []string{"", "preempt"} {
		t.Run(fmt.Sprintf("preempt=%t", preempt != ""), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, address)
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Fatal(err)
			}
			for i := range 12 {
				name := fmt.Sprint(i) + strings.Repeat("n", runstore.MaxOwner-2)
				req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{
					Owner: runstore.Owner(name), Reactor: runstore.Reactor(name), TTL: time.Minute,
				}}
				if preempt != "" {
					req.Preempt = name
				}
				granted, err := s.AcquireLease(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if preempt == "" {
					if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := get[int](t, connect(t, address), `SELECT cardinality(terms) FROM tapestore.grants`); n < 4 || n > 7 {
				t.Errorf("%d terms are kept, want those of 4 KiB", n)
			}
		})
	}
}

// A grant that a program of version 7 made and ended has no end that is known, and not that of the
// grant before.
func TestTermOfAFormerProgram(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	exec(t, conn, `INSERT INTO tapestore.grants (run, former) SELECT no, ARRAY[tapestore.former(grant_id)] FROM tapestore.runs`)
	exec(t, conn, `UPDATE tapestore.runs SET token = token + 1, grant_state = 1, grant_id = 'theirs', owner = 'former', granted = clock_timestamp()`)
	exec(t, conn, `UPDATE tapestore.runs SET grant_state = 2`)
	check := func(want ...string) {
		t.Helper()
		terms, err := s.ReadTerms(t.Context(), "run")
		var got []string
		for _, v := range terms {
			got = append(got, fmt.Sprint(v.Token, " ", v.Owner, " ", v.End, " ", !v.EndedAt.IsZero()))
		}
		if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	check("2 former released false")
	if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	check("2 former released false", "3 next none false")
}
