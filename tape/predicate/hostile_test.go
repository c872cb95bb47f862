package predicate

import (
	"fmt"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

func nested(n int, open, inner, shut string) string {
	return strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
}

// hostile are texts that cost much to compile or to evaluate, by the reason of their fault.
var hostile = map[Reason][]string{
	Compile: {
		nested(2000, "(", "true", ")"),
		nested(2000, "[", "1", "]") + " == []",
		strings.Repeat("(", 4000),
		strings.Repeat("{", 4000),
		strings.Repeat("true?", 800) + "true" + strings.Repeat(":true", 8),
		strings.Repeat("true?true:", 400) + "true",
		strings.Repeat("kind==''&&", 409) + "true",
		strings.Repeat("true||", 680) + "true",
		strings.Repeat("1+", 2000) + "1 == 1",
		strings.Repeat("payload.s+", 400) + "'' == ''",
		"payload" + strings.Repeat(".a", 2000) + " == 1",
		"payload" + strings.Repeat("[0]", 1300) + " == 1",
		"[" + strings.Repeat("1,", 2000) + "1].all(x, true)",
		"{" + strings.Repeat("1:1,", 800) + "2:2} == {}",
		nested(1300, "f(", "", ")"),
		nested(200, "has(a.", "b", ")"),
		strings.Repeat("$#@!", 1000),
		strings.Repeat("a ", 2000),
		strings.Repeat("'", 4000),
		"payload.s.matches('(((a{10}){10}){10}){10}')",
		"payload.s.matches('" + nested(900, "(", "a", ")") + "')",
		"payload.l.map(x, __result__ + __result__).size() > 0", // no way to double a list
		"payload.l.map(x, @result + @result).size() > 0",
	},
	Cost: {
		nested(30, "[1,2,3,4,5,6,7,8].all(x, ", "true", ")"),
		nested(8, "[1,2,3,4,5,6,7,8].map(x, ", "[1,2,3,4]", ")") + " == []",
		"payload.l.all(x, payload.l.all(y, payload.l.all(z, true)))",
		"payload.l.all(x, payload == payload)",
		"payload.l.exists_one(x, payload.l.exists_one(y, payload.l.exists_one(z, false)))",
		"payload.l.exists_one(x, payload.l.exists_one(y, payload.l.exists_one(z, false))) || true",
		"[1].all(x, payload.l.exists_one(y, payload.l.exists_one(z, payload.l.exists_one(u, false))) || true)",
		"payload.l.all(x, !('q' in payload.l))",
		"payload.l.all(x, size(payload.s) > 0)",
		"payload.l.all(x, (payload.s + payload.s) != 'x')",
		"payload.l.exists(x, int(payload.s) > 0)",
		"payload.l.all(x, bytes(payload.s) != b'x')",
		"payload.l.all(x, !payload.s.contains('zzz'))",
		"payload.l.all(x, !(payload.s in payload))",
		"payload.l.all(x, timestamp('2023-01-01T05:30:00Z').getFullYear('America/New_York') == 2023)",
		"payload.s.matches('(a|b|c|d|e|f)*(a|b)*z')",
		"matches(payload.s, payload.r)",
		"payload.l.all(x, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'.matches('(a*)*(a*)*(a*)*b') || true)",
		"payload.l.all(x, !('a' + string(x)).matches('a{900}' + string(x)))",
		"[" + strings.Repeat("1,", 400) + "1].all(x, [" + strings.Repeat("1,", 400) + "1].all(y, true))",
	},
}

func TestHostileTextsAreBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`{"r":"(a*)*b","l":[`)
	for i := range 3000 {
		fmt.Fprintf(&b, "%d,", i)
	}
	in := NewInput(entryOf(b.String() + `0],"s":"` + strings.Repeat("a", 900_000) + `"}`))
	for reason, texts := range hostile {
		for _, text := range texts {
			p := compiled(t, text)
			if p.Match(in) {
				t.Errorf("%.60s: selected", text)
			}
			if counts := p.Counts(); counts[reason] != 1 {
				t.Errorf("%.60s: faults %v, want one of %v; %v", text, counts, reason, p.Err())
			}
			if p.Err() != nil && len(p.Err().Error()) > maxFault {
				t.Errorf("%.60s: an error of %d bytes", text, len(p.Err().Error()))
			}
		}
	}
}

// What an evaluation costs is known before it is far beyond the limit.
func TestCostsGrowWithTheirArguments(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 900_000)
	in := NewInput(entryOf(`{"s":"` + long + `"}`))
	for _, text := range []string{"size(payload.s) == 1", "payload.s == payload.s", "payload == payload", "payload.s in ['a', payload.s]", "payload.s.contains('b')", "payload.s + 'a' == ''"} {
		p := compiled(t, text)
		if p.Match(in); p.Counts()[Cost] != 1 {
			t.Errorf("%s on a text of %d bytes: faults %v, want its cost", text, len(long), p.Counts())
		}
	}
	if got := weigh(parse(`{"a":[1,2,{"b":"`+long+`"}]}`), 10); got < 10 || got > 2*uint64(len(long)) {
		t.Errorf("weigh = %d", got)
	}
	if got := weigh(parse(`{"a":[1,2,{"b":null}]}`), MaxCost); got != 8 {
		t.Errorf("weigh = %d, want its 6 nodes and 2 keys", got)
	}
	if got := weigh(types.String(""), MaxCost); got != 1 {
		t.Errorf("weigh = %d", got)
	}
}

// One evaluation does not do more than it pays for, however large the objects of a payload are.
func TestLargeObjectsCostNoMoreThanIsCounted(t *testing.T) { // not parallel: it measures what is allocated
	var b strings.Builder
	b.WriteString(`{"m":{`)
	for i := range 60_000 {
		fmt.Fprintf(&b, `"%d":1,`, i)
	}
	b.WriteString(`"z":1},"l":[0`)
	for range 3000 {
		b.WriteString(",1")
	}
	in := NewInput(entryOf(b.String() + "]}"))
	parsed := in.payload()
	for _, text := range []string{
		"payload.l.all(x, payload.m.exists(k, true))",
		"payload.l.all(x, payload.m != {})",
		"payload.l.all(x, {} != payload.m)",
		"payload.l.all(x, {'a': payload.m} != {'b': 1})",
	} {
		p := compiled(t, text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		selected := p.Match(in)
		runtime.ReadMemStats(&after)
		if selected || p.Counts()[Cost] != 1 {
			t.Errorf("%s: selected %t, faults %v, want its cost", text, selected, p.Counts())
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 16 {
			t.Errorf("%s: an evaluation allocates %d MB", text, n)
		}
	}
	runtime.KeepAlive(parsed)
}

// A comparison looks at no more of the larger value than of the smaller one.
func TestComparisonsAreWeighedByTheSmallerValue(t *testing.T) {
	t.Parallel()
	large := &counted{Lister: parse("[" + strings.Repeat("1,", 50_000) + "1]").(traits.Lister)}
	small := parse(`[1]`)
	for _, args := range [][]ref.Val{{large, small}, {small, large}} {
		large.steps = 0
		if cost := *(estimator{}).CallCost(operators.Equals, "", args, nil); cost != 2 || large.steps > 100 {
			t.Errorf("the cost is %d, want 2, found in %d steps, want 100 at most", cost, large.steps)
		}
	}
}

// counted counts the steps of a list's iterators.
type counted struct {
	traits.Lister
	steps int
}

func (c *counted) Iterator() traits.Iterator { return &countedSteps{c.Lister.Iterator(), c} }

type countedSteps struct {
	traits.Iterator
	of *counted
}

func (c *countedSteps) Next() ref.Val {
	c.of.steps++
	return c.Iterator.Next()
}

func TestInstructionsAreNotUnderestimated(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", "a", "abc", "a|b|c", "(a|b)*c", "a{10}", "(a{10}){10}", "a{3,}", "a{0,5}b?", "(?i)abc", "[a-z]+[0-9]*$", `^\w+\s\pL{20}$`, "(a*)*(b+)+", "(?:ab){2,7}c??"} {
		tree, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		program, err := syntax.Compile(tree.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		// A program has a few instructions that are no part of the expression.
		if got, _ := measure(pattern); int(got)+4 < len(program.Inst) || int(got) > 3*len(program.Inst) {
			t.Errorf("measure(%q) = %d, want about %d", pattern, got, len(program.Inst))
		}
	}
	for _, pattern := range []string{"((a{30}){30}){30}", strings.Repeat("a{500}", 3), "(", strings.Repeat("a", maxRegex+1)} {
		if got, err := measure(pattern); err == nil {
			t.Errorf("measure(%.40q) = %d, want an error", pattern, got)
		}
	}
}

func FuzzPredicate(f *testing.F) {
	for _, texts := range hostile {
		for _, text := range texts {
			f.Add(text, `{"l":[1,2,3],"s":"aaa"}`)
		}
	}
	for _, c := range rules {
		f.Add(c.text, effect)
	}
	f.Add("payload", `[1,"a",null,{"k":1e999}]`)
	var cache Cache
	f.Fuzz(func(t *testing.T, text, payload string) {
		p, err := cache.Compile(text)
		if err != nil {
			if check(text) == nil {
				t.Fatalf("Compile(%q): %v", text, err)
			}
			return
		}
		in := NewInput(entryOf(payload))
		first := p.Match(in)
		if p.Match(NewInput(in.Entry)) != first {
			t.Fatalf("%q matches %q once, and once not", text, payload)
		}
		if p.Err() != nil && first {
			t.Fatalf("%q does not compile, and selects", text)
		}
	})
}
