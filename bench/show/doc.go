// Package show prints a report of the benchmark as text, as JSON and as one self-contained HTML
// page, and compares two reports.
//
// Every result of a report appears at least in a table. The list plots declares which of them are
// also drawn; a group that the list does not name gets one plot, of its first metric. Emulators,
// and stores that keep nothing on disk, are drawn in separate panels with axes of their own, so
// that none of their figures is next to an engine's.
package show
