package predicate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/tape"
)

// TestTheOrderOfKeysIsTheSameInEveryEvaluation checks that an expression over the keys of an object, or of a
// map in its text, has one result and one cost for an entry, however often the payload is parsed.
func TestTheOrderOfKeysIsTheSameInEveryEvaluation(t *testing.T) {
	t.Parallel()
	// A search that ends at the member "b" costs less than the limit, and one that visits "z" first does not.
	costly := `{"z":[` + strings.Repeat("1,", MaxCost) + `1],"b":[2]}`
	for _, c := range []struct {
		text, payload string
		want          bool
		counts        Counts
	}{
		{`payload.map(k, k)[0] == "a"`, `{"c":1,"d":2,"a":3,"b":4}`, true, Counts{}},
		{`payload.map(k, k) == ["", "a", "aa", "b", "é"]`, `{"é":1,"b":2,"":3,"aa":4,"a":5}`, true, Counts{}},
		{`payload.o.map(k, payload.o[k]) == [3, 4, 1, 2]`, `{"o":{"c":1,"d":2,"a":3,"b":4}}`, true, Counts{}},
		{`payload.exists(k, payload[k].exists(x, x == 2))`, costly, true, Counts{}},
		{`{"c": 1, "d": 2, "a": 3, "b": 4}.map(k, k) == ["c", "d", "a", "b"]`, `1`, true, Counts{}},
		{`{"c": 1, 4: 2, "c": 3, 2u: 4, true: 5}.map(k, string(k)) == ["c", "4", "2", "true"]`, `1`, true, Counts{}},
		{`{"c": 1, payload: 2}.map(k, {"c": 1, payload: 2}[k]) == [1, 2]`, `"b"`, true, Counts{}},
		{`{"a": 1, "b": 2} == payload`, `{"b":2,"a":1}`, true, Counts{}},
		{`{"a": payload.missing} == payload`, `{}`, false, Counts{Eval: 1}},
		{`{payload.missing: 1} == payload`, `{}`, false, Counts{Eval: 1}},
	} {
		for i := range 100 {
			p := compiled(t, c.text)
			if got := p.Match(NewInput(tape.Entry{Payload: c.payload})); got != c.want || p.Counts() != c.counts {
				t.Errorf("%s on %.60s, evaluation %d: got %v and the faults %v, want %v and %v",
					c.text, c.payload, i, got, fmt.Sprint(p.Counts()), c.want, c.counts)
				break
			}
		}
	}
}
