// Package site checks the documentation site that `make site` builds with Hugo from the Markdown of
// this repository: its links, its navigation and what readers with a keyboard or a screen reader
// need. It has tests only.
package site
