package kit

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestDiffer checks that a failure names what is missing, duplicated, unexpected or out of order.
func TestDiffer(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want []string
		text      string
	}{
		{"alike", []string{"a", "b"}, []string{"a", "b"}, ""},
		{"missing", []string{"a", "c"}, []string{"a", "b", "c"},
			"got 2 entries, want 3; missing: b; the first that differs is entry 2: got c, want b"},
		{"at the end", []string{"a"}, []string{"a", "b", "c"}, "got 1 entries, want 3; missing: b, c"},
		{"doubled", []string{"a", "b", "b"}, []string{"a", "b"}, "got 3 entries, want 2; too many of: b"},
		{"one for another", []string{"a", "x"}, []string{"a", "b"},
			"got 2 entries, want 2; missing: b; too many of: x; the first that differs is entry 2: got x, want b"},
		{"out of order", []string{"b", "a"}, []string{"a", "b"},
			"got 2 entries, want 2; the first that differs is entry 1: got b, want a"},
		{"many", nil, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"},
			"got 0 entries, want 12; missing: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more"},
	} {
		if got := DiffNames(tc.got, tc.want); got != tc.text {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.text)
		}
	}
}

// TestSeqsOf checks that a feed is described run by run, with the seqs that are missing or
// repeated.
func TestSeqsOf(t *testing.T) {
	var feed []runstore.FeedEvent
	for _, seq := range []runstore.Seq{1, 2, 3, 5, 6, 6} {
		feed = append(feed, runstore.FeedEvent{Run: "two", Event: runstore.Event{Seq: seq}})
	}
	feed = append(feed, runstore.FeedEvent{Run: "one", Event: runstore.Event{Seq: 2}})
	want := `run "one": seqs 2 to 2 (want 1); run "two": seqs 1 to 3 seqs 5 to 6 (want 4) seqs 6 to 6 (want 7)`
	if got := SeqsOf(feed); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
