package rules_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// batches makes one batch of each run and id.
func batches(pairs ...string) (all []runstore.Batch) {
	for i := 0; i < len(pairs); i += 2 {
		b := runstore.NewBatch(runstore.RunID(pairs[i]), runstore.Unguarded("test"))
		b.ID = runstore.BatchID(pairs[i+1])
		all = append(all, b)
	}
	return all
}

func TestWhole(t *testing.T) {
	t.Parallel()
	commit := batches("a", "1", "b", "2", "c", "")
	multiID := rules.MultiCommitID(commit)
	// Stores keep it: another value would be a repeat that no store recognises.
	if got, want := fmt.Sprintf("%x", multiID), "2aa3a6e755e729852afab54f226fc7ef"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if got := rules.MultiCommitID(batches("c", "", "b", "2", "a", "1")); !bytes.Equal(got, multiID) {
		t.Error("the order of the batches makes it another commit")
	}
	if commit[0].Run() != "a" || commit[2].Run() != "c" {
		t.Error("the caller's batches were put into another order")
	}
	commit[0].Append("test", []byte("what the batches do is not looked at: their ids stand for it"))
	if got := rules.MultiCommitID(commit); !bytes.Equal(got, multiID) {
		t.Error("an event makes it another commit")
	}
	for _, test := range []struct {
		what  string
		other []runstore.Batch
	}{
		{"another id", batches("a", "1", "b", "3", "c", "")},
		{"the ids exchanged", batches("a", "2", "b", "1", "c", "")},
		{"an id for the batch without", batches("a", "1", "b", "2", "c", "3")},
		{"one run less", batches("a", "1", "b", "2")},
		{"one run more", batches("a", "1", "b", "2", "c", "", "d", "")},
		{"another bound between run and id", batches("a1", "", "b", "2", "c", "")},
		{"another bound between id and run", batches("a", "1b", "", "2", "c", "")},
	} {
		if got := rules.MultiCommitID(test.other); bytes.Equal(got, multiID) {
			t.Errorf("%s is the same commit", test.what)
		}
	}
	for _, none := range [][]runstore.Batch{nil, batches("a", "", "b", "")} {
		if got := rules.MultiCommitID(none); got != nil {
			t.Errorf("got %x for %d batches without ids, want none", got, len(none))
		}
	}
}
