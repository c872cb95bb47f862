package docs_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// Every relative link of every Markdown page leads to a file, and every anchor to a heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := markdown(t)
	if len(pages) < 10 {
		t.Fatalf("found only the pages %v", pages)
	}
	for _, page := range pages {
		for _, link := range linksOf(read(t, page)) {
			if err := resolve(page, link); err != nil {
				t.Errorf("%s: (%s): %v", page, link, err)
			}
		}
	}
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	page := "# A page\n## Epoch: failover, backup\n```\n# no heading\n```\n## `make test`\n## A page\n"
	if got, want := anchorsOf(page), []string{"a-page", "epoch-failover-backup", "make-test", "a-page-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBrokenLinks(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"no-such-file.md", "README.md#no-such-heading", "#no-such-heading", "makefile", "../outside.md"} {
		if err := resolve("README.md", link); err == nil {
			t.Errorf("%q of README.md resolves", link)
		}
	}
	if got, want := linksOf("[a](b.md) `[c](d.md)` ![e](f.png)\n```\n[g](h.md)\n```\n[i]: j.md\n[k](<l m.md>)"), []string{"b.md", "f.png", "j.md", "l m.md"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// markdown returns the paths of all Markdown pages, relative to the root of the repository.
func markdown(t *testing.T) []string {
	t.Helper()
	var pages []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != "." && path != ".github"):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(path, ".md"):
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	codeForm    = regexp.MustCompile("`[^`\n]*`")
	linkForm    = regexp.MustCompile(`\]\((?:<([^>\n]*)>|([^)\s]*))[^)\n]*\)|(?m:^\[[^\]\n]+\]:\s+(\S+))`)
	headingForm = regexp.MustCompile(`^#{1,6} (.*)$`)
)

// linksOf returns the destinations of a page's links. Links in code are none.
func linksOf(page string) []string {
	var links []string
	for _, m := range linkForm.FindAllStringSubmatch(codeForm.ReplaceAllString(withoutBlocks(page), "code"), -1) {
		links = append(links, m[1]+m[2]+m[3])
	}
	return links
}

// withoutBlocks returns a page without its fenced blocks of code.
func withoutBlocks(page string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		} else if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// resolve returns an error unless link, written in page, leads to a file of the repository
// and to a heading where it names one. Links with a scheme lead elsewhere and are not checked.
func resolve(page, link string) error {
	u, err := url.Parse(link)
	if err != nil {
		return err
	}
	if u.Scheme != "" {
		return nil
	}
	target := filepath.Clean(page)
	if u.Path != "" {
		target = filepath.Join(filepath.Dir(page), filepath.FromSlash(u.Path))
	}
	if !filepath.IsLocal(target) {
		return fmt.Errorf("%s is outside of the repository", target)
	}
	if err := exists(target); err != nil {
		return err
	}
	if u.Fragment == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(root, target))
	if err != nil {
		return err
	}
	if anchors := anchorsOf(string(text)); !slices.Contains(anchors, u.Fragment) {
		return fmt.Errorf("%s has no heading %q, only %q", target, u.Fragment, anchors)
	}
	return nil
}

// exists compares names letter by letter, as a forge does and some file systems do not.
func exists(target string) error {
	dir := root
	for part := range strings.SplitSeq(filepath.ToSlash(target), "/") {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if part != "." && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == part }) {
			return fmt.Errorf("there is no %s", target)
		}
		dir = filepath.Join(dir, part)
	}
	return nil
}

// anchorsOf returns the anchors that a forge gives the headings of a page: small letters, no
// punctuation, hyphens for spaces, and a number where a heading stands twice.
func anchorsOf(page string) []string {
	var anchors []string
	count := map[string]int{}
	for line := range strings.Lines(withoutBlocks(page)) {
		m := headingForm.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(m[1]))
		if n := count[anchor]; n > 0 {
			anchors = append(anchors, fmt.Sprintf("%s-%d", anchor, n))
		} else {
			anchors = append(anchors, anchor)
		}
		count[anchor]++
	}
	return anchors
}
