package tape

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestValuesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	bodies := []string{"", "{\"a\": 1}\n\n", "\x00\u2028<é>\U0001F600", "plain"}
	value := encode(decisionHead{Model: "m<\n\u2029>"}, bodies...)
	var head decisionHead
	got := make([]string, 4)
	if err := decode("it", value, &head, &got[0], &got[1], &got[2], &got[3]); err != nil {
		t.Fatal(err)
	}
	if head.Model != "m<\n\u2029>" || !reflect.DeepEqual(got, bodies) {
		t.Errorf("decoded %q, %q, want what was encoded", head, got)
	}
	if size, want := len(encode(struct{}{}, strings.Repeat(`"`, 1000))), 1050; size > want {
		t.Errorf("1000 quotes take %d bytes, want at most %d", size, want)
	}
}

func TestUnreadableValuesAreRefused(t *testing.T) {
	t.Parallel()
	good := string(encode(decisionHead{}, "ab", "c"))
	for name, value := range map[string]string{
		"newer":       strings.Replace(good, `"v":1`, `"v":2`, 1),
		"no format":   strings.Replace(good, `"v":1`, `"v":0`, 1),
		"cut":         good[:len(good)-1],
		"too long":    good + "x",
		"not UTF-8":   good[:len(good)-1] + "\xff",
		"negative":    strings.Replace(good, "[2,1]", "[4,-1]", 1),
		"few bodies":  strings.Replace(good, "[2,1]", "[3]", 1),
		"empty":       "",
		"not JSON":    "hello",
		"wrong types": strings.Replace(good, `"h":{}`, `"h":[]`, 1),
	} {
		var a, b string
		err := decode("decision 0", []byte(value), &decisionHead{}, &a, &b)
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "decision 0") {
			t.Errorf("%s: %v, want ErrFormat that names the value", name, err)
		}
	}
}

func TestAnEndKeepsItsTimeWhenTheSummaryIsWrittenAgain(t *testing.T) {
	t.Parallel()
	end := time.UnixMicro(1_700_000_000_123_456).UTC()
	stored := func(r Run, endedNow bool, at time.Time) runstore.Run {
		return runstore.Run{ID: "r", Summary: runstore.Record{
			Version: 1, Value: r.encode(endedNow), Updated: runstore.Stamp{Time: at},
		}}
	}
	ended, err := runOf(stored(Run{}, true, end))
	if err != nil || !ended.EndedAt.Equal(end) {
		t.Fatalf("ended at %v, %v, want the commit's %v", ended.EndedAt, err, end)
	}
	later, err := runOf(stored(ended, false, end.Add(time.Hour)))
	if err != nil || !later.EndedAt.Equal(end) {
		t.Errorf("ended at %v, %v, want %v still", later.EndedAt, err, end)
	}
}

func TestSubjects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, payload, want string }{
		{"run", `{"status":"Running","app":"a","user":"","session":"s/1"}`, "/tape/run/running/a/_/s%2F1/R"},
		{"run", `{"run_id":"R","compacted_at_ms":1}`, "/tape/run//_/_/_/R"},
		{"decision", `{"decision_index":3}`, "/tape/decision/recorded/R/3"},
		{"decision", fmt.Sprintf(`{"decision_index":%d}`, math.MaxInt64), "/tape/decision/recorded/R/9223372036854775807"},
		{"effect", `{"status":"confirmed","tool":"a b*%?#\\"}`, "/tape/effect/confirmed/a%20b%2A%25%3F%23%5C/R"},
		{"effect", `{"status":"observed","tool":"tape:sample:x.@+&="}`, "/tape/effect/pending/tape:sample:x.@+&=/R"},
		{"effect", `{"status":"reconciled","tool":"überweisung\u0001\u007f"}`, "/tape/effect/reconciled/überweisung%01%7F/R"},
		{"obligation", `{"status":"pending","kind":"k"}`, "/tape/obligation/pending/k/R"},
		{"gate", `{"status":"waiting","gate":"g"}`, "/tape/gate/waiting/g/R"},
		{"value", `{"namespace":"n","key":"k","version":2}`, "/tape/value/changed/n/k"},
		{"value", `{"namespace":"","key":"k","deleted":true}`, "/tape/value/deleted/_/k"},
		{"event", `{"app":"a","user":"u","session":"s"}`, "/tape/event/appended/a/u/s"},
		{"policy", `{}`, "/tape/policy"},
		{"run", `not JSON`, "/tape/run//_/_/_/R"},
	} {
		if got := Subject(c.kind, c.payload, "R"); got != c.want {
			t.Errorf("Subject(%s, %s) = %s, want %s", c.kind, c.payload, got, c.want)
		}
	}
}

func TestClipKeepsCharactersWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"éé", 3, "é"}, {"é", 1, ""}} {
		if got := clip(c.text, c.limit); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}
