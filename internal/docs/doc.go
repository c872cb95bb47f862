// Package docs checks the repository's Markdown pages: that their links resolve, and that what
// they say about the code is so. It has tests only.
package docs
