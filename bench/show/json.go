package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/tapestore/tapestore/bench"
)

// JSON writes the report in the form that ReadJSON reads. It leaves out infinite samples and NaNs,
// which JSON cannot represent.
func JSON(w io.Writer, r bench.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(finite(r))
}

// finite returns the report without samples that are infinite or NaN, such as a rate over no time,
// and notes their removal.
func finite(r bench.Report) bench.Report {
	r.Results, r.Notes = slices.Clone(r.Results), slices.Clone(r.Notes)
	for i := range r.Results {
		result := &r.Results[i]
		result.Metrics = slices.Clone(result.Metrics)
		for k := range result.Metrics {
			m := &result.Metrics[k]
			kept := slices.DeleteFunc(slices.Clone(m.Samples), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
			if n := len(m.Samples) - len(kept); n > 0 {
				m.Samples = kept
				r.Notes = append(r.Notes, bench.Note{
					Part: result.Part, System: result.System,
					Text: fmt.Sprintf("%s, %s: %s of %s left out: not a number", result.Group, result.Side, count(n, "sample"), m.Name),
				})
			}
		}
	}
	return r
}

// ReadJSON reads a report that JSON wrote. It refuses a document that is not a report, and a format
// newer than this program's.
func ReadJSON(r io.Reader) (bench.Report, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return bench.Report{}, err
	}
	var head struct{ Format int }
	if err := json.Unmarshal(data, &head); err != nil {
		return bench.Report{}, fmt.Errorf("it is no report of tapestore bench: %w", err)
	}
	switch {
	case head.Format <= 0:
		return bench.Report{}, errors.New("it is no report of tapestore bench: it has no Format")
	case head.Format > bench.Format:
		return bench.Report{}, fmt.Errorf("the report has format %d, and this program reads up to %d: a newer tapestore wrote it", head.Format, bench.Format)
	}
	var report bench.Report
	if err := json.Unmarshal(data, &report); err != nil {
		return bench.Report{}, fmt.Errorf("the report cannot be read: %w", err)
	}
	return report, nil
}
