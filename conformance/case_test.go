package conformance_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tapestore/tapestore/conformance"
)

// A shorter Doc cannot say what happens, what must hold and which bug the case catches. A longer
// Doc is not read by an author whose store has just failed the case.
const shortestDoc, longestDoc = 150, 600

// TestEveryCaseHasADoc checks that the author of a failing store learns what the case is about.
func TestEveryCaseHasADoc(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	space := regexp.MustCompile(`\s{2,}|[\t\n]`)
	for _, c := range conformance.Cases() {
		name := c.Guarantee + "/" + c.Name
		switch n := utf8.RuneCountInString(c.Doc); {
		case c.Doc == "":
			t.Errorf("%s has no Doc", name)
			continue
		case n < shortestDoc, n > longestDoc:
			t.Errorf("%s: the Doc has %d characters, want %d to %d", name, n, shortestDoc, longestDoc)
		}
		if !strings.HasSuffix(c.Doc, ".") || strings.TrimSpace(c.Doc) != c.Doc || space.MatchString(c.Doc) {
			t.Errorf("%s: the Doc is not one line of sentences: %q", name, c.Doc)
		}
		if other, repeated := seen[c.Doc]; repeated {
			t.Errorf("%s has the Doc of %s", name, other)
		}
		seen[c.Doc] = name
	}
}

// TestCrossRunCases checks that the cases of steps over two runs are cases of the suite, in the same
// order and with the same Doc.
func TestCrossRunCases(t *testing.T) {
	t.Parallel()
	rest := conformance.CrossRunCases()
	if len(rest) == 0 {
		t.Fatal("there are no cases of steps over two runs")
	}
	for _, c := range conformance.Cases() {
		if len(rest) > 0 && c.Guarantee == rest[0].Guarantee && c.Name == rest[0].Name && c.Doc == rest[0].Doc {
			rest = rest[1:]
		}
	}
	for _, c := range rest {
		t.Errorf("%s/%s is not a case of the suite, or not in this order", c.Guarantee, c.Name)
	}
}
