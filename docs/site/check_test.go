package site_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

const (
	repository = "https://github.com/tapestore/tapestore/"
	packages   = "https://pkg.go.dev/github.com/tapestore/tapestore"
)

// page is what the checks need of an HTML page.
type page struct {
	title    string
	language string
	ids      []string
	links    []string // href and src of all elements
	headings []int    // levels, in order, of the main content
	mains    int
	faults   []string
}

// site is a built site.
type site struct {
	files fs.FS
	pages map[string]*page // by path: concepts/index.html
	// source returns an error unless the repository has a file ("blob") or a directory ("tree") of
	// that path.
	source func(kind, path string) error
}

// load parses all pages of a site.
func load(files fs.FS, source func(kind, path string) error) (*site, error) {
	s := &site{files: files, pages: map[string]*page{}, source: source}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".html" {
			return err
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		root, err := html.Parse(f)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p := &page{}
		p.read(root, false)
		s.pages[name] = p
		return nil
	})
	return s, err
}

// read collects a node and the nodes below it. inMain reports that the node is in the main content.
func (p *page) read(n *html.Node, inMain bool) {
	if n.Type == html.ElementNode {
		attributes := map[string]string{}
		for _, a := range n.Attr {
			attributes[a.Key] = a.Val
		}
		for _, key := range []string{"href", "src"} {
			if link, ok := attributes[key]; ok {
				p.links = append(p.links, link)
			}
		}
		if id, ok := attributes["id"]; ok {
			p.ids = append(p.ids, id)
		}
		switch n.Data {
		case "html":
			p.language = attributes["lang"]
		case "title":
			p.title = text(n)
		case "main":
			p.mains++
			inMain = true
		case "img":
			if attributes["alt"] == "" {
				p.faults = append(p.faults, fmt.Sprintf("the picture %s has no alternative text", attributes["src"]))
			}
		case "a":
			if text(n) == "" && attributes["aria-label"] == "" {
				p.faults = append(p.faults, fmt.Sprintf("the link to %s has no text", attributes["href"]))
			}
		case "script":
			if attributes["src"] == "" {
				p.faults = append(p.faults, "has a script within the page")
			}
		case "h1", "h2", "h3", "h4", "h5", "h6":
			if inMain {
				p.headings = append(p.headings, int(n.Data[1]-'0'))
			}
		}
	}
	for c := range n.ChildNodes() {
		p.read(c, inMain)
	}
}

// text returns the text of a node, and the alternative texts of its pictures.
func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
		for _, a := range c.Attr {
			if a.Key == "alt" {
				b.WriteString(a.Val)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// check returns the faults of a site, sorted.
func (s *site) check() []string {
	var faults []string
	report := func(name, format string, args ...any) {
		faults = append(faults, name+": "+fmt.Sprintf(format, args...))
	}
	titles := map[string]string{}
	for name, p := range s.pages {
		for _, fault := range p.faults {
			report(name, "%s", fault)
		}
		for _, link := range p.links {
			if err := s.resolve(name, link); err != nil {
				report(name, "(%s): %v", link, err)
			}
		}
		for i, id := range p.ids {
			if slices.Contains(p.ids[:i], id) {
				report(name, "two elements have the id %q", id)
			}
		}
		if p.language == "" {
			report(name, "has no language")
		}
		if other, ok := titles[p.title]; ok || p.title == "" {
			report(name, "has the title %q, as %s has", p.title, other)
		}
		titles[p.title] = name
		if p.mains != 1 {
			report(name, "has %d main elements", p.mains)
		}
		if len(p.headings) == 0 || p.headings[0] != 1 {
			report(name, "does not begin with a heading of level 1")
		}
		for i, level := range p.headings {
			if i > 0 && (level == 1 || level > p.headings[i-1]+1) {
				report(name, "a heading of level %d follows one of level %d", level, p.headings[i-1])
			}
		}
	}
	slices.Sort(faults)
	return slices.Compact(faults)
}

// resolve returns an error unless a link of the page leads to a file of the site and, if it names
// one, to an element of it. Of the links to other sites it checks those to this repository and to
// the documentation of its packages.
func (s *site) resolve(from, link string) error {
	u, err := url.Parse(link)
	if err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(link, repository):
		kind, rest, _ := strings.Cut(strings.TrimPrefix(u.Path, "/tapestore/tapestore/"), "/")
		if kind != "blob" && kind != "tree" {
			return nil // issues and the like
		}
		_, file, _ := strings.Cut(rest, "/") // the commit comes first
		return s.source(kind, file)
	case strings.HasPrefix(link, packages+"/"):
		return s.source("tree", strings.TrimPrefix(link, packages+"/"))
	case u.Scheme == "https" || u.Scheme == "mailto":
		return nil
	case u.Scheme != "" || u.Host != "":
		return fmt.Errorf("the scheme is %q", u.Scheme)
	}
	target := from
	if u.Path != "" {
		if strings.HasPrefix(u.Path, "/") {
			return fmt.Errorf("is absolute: the site would work at the root of a host only")
		}
		target = path.Join(path.Dir(from), u.Path)
		if strings.HasSuffix(u.Path, "/") || target == "." {
			target = path.Join(target, "index.html")
		}
	}
	p, isPage := s.pages[target]
	if !isPage {
		if _, err := fs.Stat(s.files, target); err != nil {
			return err
		}
	}
	switch {
	case u.Fragment == "" && link == "#":
		return fmt.Errorf("leads nowhere")
	case u.Fragment == "":
		return nil
	case !isPage:
		return fmt.Errorf("%s is no page", target)
	case !slices.Contains(p.ids, u.Fragment):
		return fmt.Errorf("%s has no element %q", target, u.Fragment)
	}
	return nil
}
