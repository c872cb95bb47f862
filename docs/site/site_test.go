package site_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	root  = "../.."              // the repository
	built = root + "/dist/site/" // what make site has built
)

// source looks a file or a directory up in the repository.
func source(kind, name string) error {
	info, err := os.Stat(filepath.Join(root, filepath.FromSlash(name)))
	switch {
	case err != nil:
		return err
	case info.IsDir() != (kind == "tree"):
		return fmt.Errorf("is linked as %s", kind)
	}
	return nil
}

// open loads the site.
func open(t *testing.T) *site {
	t.Helper()
	if _, err := os.Stat(built); errors.Is(err, fs.ErrNotExist) {
		t.Fatal("there is no site: run make site")
	}
	s, err := load(os.DirFS(built), source)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The site has no broken link, and its pages have what readers with a screen reader need.
func TestSite(t *testing.T) {
	t.Parallel()
	for _, fault := range open(t).check() {
		t.Error(fault)
	}
}

// Every page of docs/ and of the engines is on the site, and its navigation leads there.
func TestEveryPageIsInTheNavigation(t *testing.T) {
	t.Parallel()
	s := open(t)
	home := s.pages["index.html"]
	if home == nil {
		t.Fatal("the site has no home")
	}
	want := []string{
		"engines/index.html", "engines/sqlite/index.html", "engines/postgres/index.html", "engines/alloydb/index.html",
		"engines/bigtable/index.html", "engines/spanner/index.html", "decisions/index.html", "api/index.html",
	}
	files, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(files) < 15 {
		t.Fatalf("found %d pages in docs/: %v", len(files), err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".md"); name != "engines" {
			want = append(want, name+"/index.html")
		}
	}
	for _, name := range want {
		if s.pages[name] == nil {
			t.Errorf("there is no page %s", name)
		}
		if link := "./" + strings.TrimSuffix(name, "index.html"); !slices.Contains(home.links, link) {
			t.Errorf("the navigation has no link to %s", name)
		}
	}
	records, err := filepath.Glob(filepath.Join(root, "docs/decisions/0*.md"))
	if err != nil || len(records) < 10 {
		t.Fatalf("found %d decisions: %v", len(records), err)
	}
	for _, file := range records {
		if name := "decisions/" + strings.TrimSuffix(filepath.Base(file), ".md") + "/index.html"; s.pages[name] == nil {
			t.Errorf("there is no page %s", name)
		}
	}
}

// The list of packages on the page of the API has those that a program imports first.
func TestPackagesAreListed(t *testing.T) {
	t.Parallel()
	api := open(t).pages["api/index.html"]
	if api == nil {
		t.Fatal("there is no page of the API")
	}
	listed := 0
	for _, link := range api.links {
		if strings.HasPrefix(link, packages+"/") {
			listed++
		}
		if strings.Contains(link, "/internal/") {
			t.Errorf("lists %s", link)
		}
	}
	if listed < 50 {
		t.Errorf("lists %d packages", listed)
	}
	for _, name := range []string{"/runstore", "/runstore/memory", "/lease/k8s", "/conformance"} {
		if !slices.Contains(api.links, packages+name) {
			t.Errorf("does not list %s", name)
		}
	}
}

// The sections that the search finds are on the site.
func TestSearchIndex(t *testing.T) {
	t.Parallel()
	s := open(t)
	data, err := os.ReadFile(filepath.Join(built, "search.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sections [][4]string // address, page, heading, text
	if err := json.Unmarshal(data, &sections); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, section := range sections {
		address := section[0]
		if address == "" {
			address = "./"
		}
		if err := s.resolve("index.html", address); err != nil {
			t.Errorf("%q: %v", section[:3], err)
		}
		if section[1] == "" || strings.ContainsAny(section[1]+section[2], "<>") || strings.Contains(section[3], "</") {
			t.Errorf("is not plain: %q", section[:3])
		}
		found[address] = true
	}
	for _, address := range []string{"./", "concepts/#fence", "failures/#postgres", "engines/sqlite/#the-clock"} {
		if !found[address] {
			t.Errorf("the index has no section %q", address)
		}
	}
	if len(data) > 1<<20 {
		t.Errorf("the index has %d bytes", len(data))
	}
}

// The checker reports planted faults, and nothing else.
func TestCheckReportsFaults(t *testing.T) {
	t.Parallel()
	const sound = `<html lang="en"><title>A</title><main><h1 id="a">A</h1><h2 id="b">B</h2><a href="#b">b</a>
		<a href="./c/#a">c</a><a href="https://example.com/">e</a><a href="` + repository + `blob/main/docs/site/doc.go">f</a>
		<img src="p.svg" alt="p"></main></html>`
	const other = `<html lang="en"><title>C</title><main><h1 id="a">C</h1><a href="./../">a</a></main></html>`
	for _, tc := range []struct {
		name, old, new, want string
	}{
		{"nothing", "", "", ""},
		{"anchor", `href="#b"`, `href="#d"`, `no element "d"`},
		{"anchor of another page", "./c/#a", "./c/#b", `no element "b"`},
		{"page", "./c/#a", "./d/", "d/index.html"},
		{"absolute", "./c/#a", "/c/", "is absolute"},
		{"no address", "#b", "#", "leads nowhere"},
		{"picture", "p.svg", "q.svg", "q.svg"},
		{"alternative text", `alt="p"`, "", "no alternative text"},
		{"source", "doc.go", "none.go", "none.go"},
		{"kind of source", "blob/main", "tree/main", "linked as tree"},
		{"scheme", "https://example.com/", "http://example.com/", "scheme"},
		{"id twice", `id="b"`, `id="a"`, `id "a"`},
		{"language", ` lang="en"`, "", "no language"},
		{"title", "<title>A", "<title>C", "has the title"},
		{"level", "<h2", "<h3", "level 3 follows"},
		{"no heading", "h1", "p", "does not begin"},
		{"main", "main>", "div>", "0 main"},
		{"script", "<main>", "<main><script>1</script>", "script"},
		{"text of a link", ">c<", "><", "no text"},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			page := sound
			if tc.old != "" {
				page = strings.ReplaceAll(sound, tc.old, tc.new)
				if page == sound {
					t.Fatalf("the page has no %q", tc.old)
				}
			}
			s, err := load(fstest.MapFS{
				"index.html":   {Data: []byte(page)},
				"c/index.html": {Data: []byte(other)},
				"p.svg":        {Data: []byte("<svg/>")},
			}, source)
			if err != nil {
				t.Fatal(err)
			}
			faults := strings.Join(s.check(), "\n")
			if tc.want == "" && faults != "" || !strings.Contains(faults, tc.want) {
				t.Errorf("got %q, want %q", faults, tc.want)
			}
		})
	}
}
