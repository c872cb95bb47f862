package archive

import (
	"context"
	"errors"
	"hash/maphash"

	"github.com/tapestore/tapestore/runstore"
)

// VerifyOptions configures [Verify] and [VerifyArchive]. A zero field takes its default; nil options
// mean all defaults.
type VerifyOptions struct {
	// MaxDifferences bounds the differences that are reported. Default 100.
	MaxDifferences int
	// Found is called for each difference.
	Found func(Difference)
	// Progress is called after each run with the report until then.
	Progress func(VerifyReport)
}

// VerifyReport counts what was compared and found.
type VerifyReport struct {
	// Compared counts the originals.
	Compared Counts
	// Differing counts the runs that differ, that the copy lacks, or that only the copy has.
	Differing int64
	// Unreported counts the differences beyond VerifyOptions.MaxDifferences.
	Unreported int64
}

// Verify compares the runs of a store with those of a copy. They are equal if everything is that an
// import keeps; the tokens of the runs and the floors of versions may be higher in the copy. Both
// stores should be idle: a run that changes meanwhile differs. Differences are no error.
//
// Errors: ErrUnsupported if a store is no runstore.Mover; those of the stores.
func Verify(ctx context.Context, original, copied runstore.RunStore, opts *VerifyOptions) (VerifyReport, error) {
	from, err := newSource(original)
	if err != nil {
		return VerifyReport{}, err
	}
	v, err := newVerifier(copied, opts)
	if err != nil {
		return VerifyReport{}, err
	}
	err = from.runs(ctx, "", func(id runstore.RunID) error {
		_, err := from.walk(ctx, id, v)
		return err
	})
	if err != nil {
		return v.report, err
	}
	err = v.copies.runs(ctx, "", func(id runstore.RunID) error {
		_, err := original.GetRun(ctx, id)
		if errors.Is(err, runstore.ErrNotFound) {
			v.extra(id)
			return nil
		}
		return err
	})
	return v.report, err
}

// VerifyArchive is Verify for an archive and a store into which it was imported. It holds a hash of 8
// bytes for each run of the archive in memory, about 40 MiB for a million runs.
//
// Errors: *DamageError; ErrUnsupported; those of the store.
func VerifyArchive(ctx context.Context, original *Source, copied runstore.RunStore, opts *VerifyOptions) (VerifyReport, error) {
	v, err := newVerifier(copied, opts)
	if err != nil {
		return VerifyReport{}, err
	}
	v.seed, v.ids = maphash.MakeSeed(), map[uint64]struct{}{}
	if _, err := original.read(ctx, nil, v); err != nil {
		return v.report, err
	}
	err = v.copies.runs(ctx, "", func(id runstore.RunID) error {
		if _, known := v.ids[maphash.String(v.seed, string(id))]; !known {
			v.extra(id)
		}
		return nil
	})
	return v.report, err
}

// verifier is the sink that compares all runs with those of a copy.
type verifier struct {
	*comparison
	opts        VerifyOptions
	report      VerifyReport
	shown       int
	pending     Counts       // of the present run, whose lines a discard may void
	differences []Difference // likewise, at most maxPerRun and one more
	seed        maphash.Seed
	ids         map[uint64]struct{} // hashes of the originals; nil if they can be read again
}

func newVerifier(copied runstore.RunStore, opts *VerifyOptions) (*verifier, error) {
	copies, err := newSource(copied)
	if err != nil {
		return nil, err
	}
	v := &verifier{}
	if opts != nil {
		v.opts = *opts
	}
	if v.opts.MaxDifferences <= 0 {
		v.opts.MaxDifferences = defaultDifferences
	}
	if v.opts.Found == nil {
		v.opts.Found = func(Difference) {}
	}
	if v.opts.Progress == nil {
		v.opts.Progress = func(VerifyReport) {}
	}
	v.comparison = newComparison(copies, func(d Difference) { v.differences = append(v.differences, d) })
	return v, nil
}

func (v *verifier) show(d Difference) {
	if v.shown++; v.shown > v.opts.MaxDifferences {
		v.report.Unreported++
		return
	}
	v.opts.Found(d)
}

// extra reports a run that only the copy has.
func (v *verifier) extra(id runstore.RunID) {
	v.report.Differing++
	v.show(Difference{Run: id, Problem: "only the copy has this run"})
}

func (v *verifier) head(ctx context.Context, h head) error {
	v.pending, v.differences = Counts{Runs: 1}, nil
	if v.ids != nil {
		v.ids[maphash.String(v.seed, string(h.ID))] = struct{}{}
	}
	return v.comparison.head(ctx, h)
}

func (v *verifier) record(ctx context.Context, r runstore.PlacedRecord) error {
	v.pending.Records++
	return v.comparison.record(ctx, r)
}

func (v *verifier) event(ctx context.Context, e runstore.Event) error {
	v.pending.Events++
	return v.comparison.event(ctx, e)
}

func (v *verifier) end(ctx context.Context) error {
	if err := v.comparison.end(ctx); err != nil {
		return err
	}
	v.report.Compared.add(v.pending)
	for _, d := range v.differences {
		v.show(d)
	}
	if v.found > 0 {
		v.report.Differing++
	}
	v.opts.Progress(v.report)
	return nil
}

// discard drops the id of the present run: the lines of its next reading follow, unless the run was
// purged. Its differences are not reported before its end.
func (v *verifier) discard(context.Context) error {
	if v.ids != nil {
		delete(v.ids, maphash.String(v.seed, string(v.h.ID)))
	}
	return nil
}
