package bench_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore"
)

// careless is a store that breaks one promise that the part scale verifies.
type careless struct {
	runstore.RunStore
	breaks string
}

func (s *careless) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	if s.breaks == "creations" && spec.Lease != nil && spec.Lease.Owner == "bench" {
		return runstore.Created{}, errors.New("no more runs")
	}
	return s.RunStore.CreateRun(ctx, spec)
}

func (s *careless) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	page, err := s.RunStore.ScanIndex(ctx, q)
	if s.breaks == "index" && len(page) > 2 {
		page = page[1:]
	}
	return page, err
}

func (s *careless) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := s.RunStore.AcquireLease(ctx, req)
	if err != nil || s.breaks != "grants" {
		return granted, err
	}
	if _, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Lease.Fence()}); err != nil {
		return granted, err
	}
	req.Grant = ""
	return s.RunStore.AcquireLease(ctx, req)
}

func (s *careless) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	switch {
	case s.breaks == "puts" && len(b.Events) > 0:
		b.Records = nil
	case s.breaks == "purges" && b.Purge:
		return runstore.Committed{}, nil
	}
	return s.RunStore.Commit(ctx, b)
}

func (s *careless) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	found, err := s.RunStore.ReadRecords(ctx, id, q)
	if s.breaks == "pages" && len(found) > 2 {
		found = slices.Delete(found, 1, 2)
	}
	return found, err
}

func (s *careless) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	page, err := s.RunStore.ReadFeed(ctx, q)
	if s.breaks == "feed" {
		page = slices.DeleteFunc(page, func(e runstore.FeedEvent) bool { return e.Seq == 2 })
	}
	return page, err
}

func TestScaleReportsWhatAStoreLoses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		breaks, want string // the fault
	}{
		{"nothing", ""},
		{"creations", "no more runs"},
		{"index", "the first scan among 10 live leases: the index has"},
		{"grants", "live leases, acquire and release, 10 live leases: reading back: the tokens say"},
		{"puts", "run size, "},
		{"pages", "run size, page of a prefix, 20 records: 19 records were read"},
		{"purges", "purge, purge, 20 events: reading back: run"},
		{"feed", "the feed shows seq 3 where 2 belongs"},
	} {
		t.Run(c.breaks, func(t *testing.T) {
			t.Parallel()
			report := run(t, "scale", func(s runstore.RunStore) runstore.RunStore { return &careless{RunStore: s, breaks: c.breaks} })
			if c.want == "" && len(report.Faults) > 0 || !strings.Contains(faults(report), c.want) {
				t.Errorf("faults: %q, want some of %q", faults(report), c.want)
			}
			if c.want == "" {
				wantGroups(t, report, "live leases", "first scan", "run size", "purge", "handles")
			}
		})
	}
}

// wantGroups checks that each group has a figure, and describes what was read back where it writes.
func wantGroups(t *testing.T, r bench.Report, groups ...string) {
	t.Helper()
	for _, group := range groups {
		verified := false
		for _, result := range r.Results {
			verified = verified || result.Group == group && result.Verified != "" && len(result.Metrics) > 0
		}
		if !verified {
			t.Errorf("nothing was measured and read back of %q", group)
		}
	}
}
