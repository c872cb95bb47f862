package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var (
	// caseForm is a case of one of the suites, in code: `I3/…`, `T2/…`.
	caseForm = regexp.MustCompile("`([IT][0-9]+/[a-z0-9-]+)`")
	// goTestForm is a Go test, in code.
	goTestForm = regexp.MustCompile("`(Test[A-Z]\\w*)`")
)

// Cases and tests that a page names are there.
func TestQuotedCases(t *testing.T) {
	t.Parallel()
	known := isCase(t)
	if known("I3/no-such-case") || known("TestNoSuchTest") {
		t.Fatal("names that nothing has are known")
	}
	quoted := 0
	for _, page := range markdown(t) {
		text := withoutBlocks(read(t, page))
		for _, form := range []*regexp.Regexp{caseForm, goTestForm} {
			for _, m := range form.FindAllStringSubmatch(text, -1) {
				quoted++
				if !known(m[1]) {
					t.Errorf("%s names %s, which is neither a case nor a test", page, m[1])
				}
			}
		}
	}
	if quoted < 100 {
		t.Errorf("found %d names only: the form of the pages has changed", quoted)
	}
}

// The number of cases grows: an example of output that has it would be wrong soon.
func TestPagesDoNotCountCases(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`[0-9]+ of [0-9]+ cases`)
	for _, page := range markdown(t) {
		if found := form.FindString(read(t, page)); found != "" {
			t.Errorf("%s counts the cases of the suite: %s", page, found)
		}
	}
}

// Each row of docs/failures.md names what proves it, or says that nothing does.
func TestFailuresAreProved(t *testing.T) {
	t.Parallel()
	rows, proved := 0, 0
	for line := range strings.Lines(read(t, "docs/failures.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.Contains(line, "---") || strings.TrimSpace(cells[3]) == "proved by" {
			continue
		}
		rows++
		proof := cells[3]
		switch {
		case caseForm.MatchString(proof) || goTestForm.MatchString(proof):
			proved++
		case !strings.Contains(proof, "not proved") && !strings.Contains(proof, "no test"):
			t.Errorf("nothing is named that proves: %s", strings.TrimSpace(line))
		}
	}
	if rows < 40 || proved < 35 {
		t.Errorf("found %d failures, %d of them proved: the form of the page has changed", rows, proved)
	}
}
