package predicate

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

func compiled(t *testing.T, text string) *Predicate {
	t.Helper()
	p, err := new(Cache).Compile(text)
	if err != nil {
		t.Fatalf("Compile(%.40q): %v", text, err)
	}
	return p
}

const effect = `{"tool":"execute_sweep","n":3,"x":1.5,"one":1.0,"big":9223372036854775808,"neg":-7,` +
	`"ok":true,"none":null,"list":[1,"two",{"k":"v"}],"map":{"a":{"b":"c"}},"empty":"","exp":1e3}`

// fault stands for a rule whose text has a fault.
const (
	yes = -1
	no  = -2
)

// rules say what a text selects of effect: yes, no, or the reason of a fault.
var rules = []struct {
	text string
	want Reason
}{
	{"", yes},
	{" \t\n", yes},
	{"true", yes},
	{"false", no},
	{`payload.tool == "execute_sweep"`, yes},
	{`payload.tool == "other"`, no},
	{`payload.tool != "other"`, yes},
	{`payload["tool"].startsWith("execute_")`, yes},
	{`payload.n == 3`, yes},
	{`payload.n == 3.0`, yes},
	{`payload.n / 2 == 1`, yes}, // an int
	{`payload.x == 1.5`, yes},
	{`payload.x > 1`, yes},
	{`type(payload.one) == double && type(payload.n) == int && type(payload.exp) == double`, yes},
	{`payload.big > 9.2e18 && type(payload.big) == double`, yes},
	{`payload.neg == -7`, yes},
	{`payload.ok`, yes},
	{`!payload.ok`, no},
	{`payload.none == null`, yes},
	{`payload.list[1] == "two" && payload.list[2].k == "v" && size(payload.list) == 3`, yes},
	{`payload.map.a.b == "c"`, yes},
	{`"a" in payload.map && !("z" in payload.map) && 1 in payload.list`, yes},
	{`has(payload.tool) && !has(payload.missing)`, yes},
	{`payload.list.exists(x, x == "two")`, yes},
	{`payload.missing == 1`, Eval},
	{`payload.missing == 1 || true`, yes},
	{`payload.tool.missing == 1`, Eval},
	{`payload.tool > 1`, Eval},
	{`payload.list[9] == 1`, Eval},
	{`payload.n / 0 == 1`, Eval},
	{`int(payload.tool) == 1`, Eval},
	{`payload.tool`, NotBool},
	{`payload`, NotBool},
	{`payload.none`, NotBool},
	{`1`, Compile},
	{`kind`, Compile},
	{`payload.tool ==`, Compile},
	{`kind == 1`, Compile},
	{`nosuch == 1`, Compile},
	{`nosuch(payload)`, Compile},
	{`kind.matches("(")`, Compile},
	{`global_seq == 42 && seq == 7 && schema_version == 1`, yes},
	{`global_seq > 41.5`, yes},
	{`ts_ms == 1700000000123`, yes},
	{`timestamp("2023-11-14T22:13:20Z").getFullYear() == 2023`, yes},
	{`run_id == "r-1" && kind == "effect" && trace_id == ""`, yes},
	{`subject == "/tape/effect/confirmed/execute_sweep/r-1"`, yes},
	{`subject.matches("^/tape/effect/[a-z]+/") && matches(kind, "eff.ct")`, yes},
	{`subject.matches(payload.empty)`, yes},
	{`payload.tool.matches("^" + kind)`, no},
	{`subject.contains("sweep") && subject.endsWith("1") && subject.size() > 10`, yes},
	{`kind in ["effect", "run"] ? payload.n > 2 : false`, yes},
}

func TestRules(t *testing.T) {
	t.Parallel()
	in := NewInput(entryOf(effect))
	for _, c := range rules {
		p := compiled(t, c.text)
		got := p.Match(in)
		want := Counts{}
		if c.want >= 0 {
			want[c.want] = 1
		}
		if got != (c.want == yes) || p.Counts() != want {
			t.Errorf("%s = %t, faults %v; want %d; %v", c.text, got, p.Counts(), c.want, p.Err())
		}
		if (p.Err() != nil) != (c.want == Compile) || p.Text() != c.text {
			t.Errorf("%s: Err = %v, Text = %q", c.text, p.Err(), p.Text())
		}
	}
}

func TestPayloads(t *testing.T) {
	t.Parallel()
	for payload, text := range map[string]string{
		``: `payload == null`, `null`: `payload == null`, `{`: `payload == null`, `{} {}`: `payload == null`, `nonsense`: `payload == null`,
		`{"a":1}x`: `payload == null`, strings.Repeat("[", 20_000): `payload == null`,
		` {"a":1} `: `payload.a == 1`, `7`: `payload == 7`, `"text"`: `payload == "text"`, `[1,2]`: `payload == [1, 2]`, `false`: `payload == false`,
		`{"a":1,"a":2}`: `payload.a == 2`, `1e999`: `payload > 1e300`, `-0`: `payload == 0 && type(payload) == int`,
		`"\ud800"`: `payload.size() == 1`, `9223372036854775807`: `payload == 9223372036854775807`,
		strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000): `payload != null`,
	} {
		if p := compiled(t, text); !p.Match(NewInput(entryOf(payload))) {
			t.Errorf("%s does not select %.40s; faults %v", text, payload, p.Counts())
		}
	}
}

func TestBadTextsAreRefused(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]error{
		strings.Repeat(" ", MaxText+1): runstore.ErrTooLarge, "kind == '\xff'": runstore.ErrInvalid,
	} {
		var limit *runstore.InputError
		if p, err := new(Cache).Compile(text); p != nil || !errors.Is(err, kind) || !errors.As(err, &limit) || limit.Field != "predicate_cel" {
			t.Errorf("Compile(%.20q) = %v, %v; want %v with the field", text, p, err, kind)
		}
	}
	compiled(t, strings.Repeat(" ", MaxText))
}

// An entry is parsed once for all predicates that want its payload, and not before.
func TestThePayloadIsParsedOnceAndOnDemand(t *testing.T) {
	t.Parallel()
	in := NewInput(entryOf(effect))
	if compiled(t, `kind == "effect"`).Match(in); in.parsed.Value() != nil {
		t.Error("the payload was parsed for a predicate that does not look at it")
	}
	first := in.payload()
	if compiled(t, `payload.n == 3`).Match(in); in.payload() != first {
		t.Error("the payload was parsed again")
	}
	runtime.KeepAlive(first)
}

func TestMatchIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var cache Cache
	inputs := []*Input{NewInput(entryOf(effect)), NewInput(entryOf(`{"tool":"other"}`))}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				p, err := cache.Compile(fmt.Sprintf(`payload.tool == "execute_sweep" || payload.missing == %d`, i%4))
				if err != nil {
					t.Error(err)
					return
				}
				if !p.Match(inputs[0]) || p.Match(inputs[1]) {
					t.Error("a predicate selects the wrong entry")
				}
			}
		})
	}
	wg.Wait()
	if got, want := cache.Counts(), (Counts{Eval: 400}); got != want {
		t.Errorf("Counts = %v, want %v", got, want)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	var cache Cache
	compile := func(text string) *Predicate {
		t.Helper()
		p, err := cache.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	kept := compile("kind == 'kept'")
	for i := range 100 {
		compile(fmt.Sprintf("%d%s", i, strings.Repeat(" ", MaxText-10)))
		compile(fmt.Sprintf("%d", i))
		if compile("kind == 'kept'") != kept {
			t.Fatal("a predicate in use was compiled again")
		}
		if cache.bytes > cacheBytes || len(cache.byText) != cache.recent.Len() {
			t.Fatalf("the cache keeps %d bytes in %d and %d predicates", cache.bytes, len(cache.byText), cache.recent.Len())
		}
	}
	if len(cache.byText) > 100 {
		t.Errorf("the cache keeps %d predicates", len(cache.byText))
	}
}

func TestReasonsHaveNames(t *testing.T) {
	t.Parallel()
	for r, want := range map[Reason]string{Compile: "compile", Eval: "eval", Cost: "cost", NotBool: "not_bool"} {
		if r.String() != want {
			t.Errorf("%d is %q, want %q", r, r, want)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	p, err := new(Cache).Compile(`payload.tool == "execute_sweep"`)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("shared entry", func(b *testing.B) {
		in := NewInput(entryOf(effect))
		for b.Loop() {
			p.Match(in)
		}
	})
	b.Run("own entry", func(b *testing.B) {
		for b.Loop() {
			p.Match(NewInput(entryOf(effect)))
		}
	})
}
