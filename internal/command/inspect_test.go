package command

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// An answer that is longer than a page comes in pages, each of which says where the next begins. Together
// they hold everything once, the leases of unlisted runs too.
func TestInspectPages(t *testing.T) {
	t.Parallel()
	url := "memory:inspect-pages"
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	lease := &runstore.LeaseSpec{Owner: "a", Reactor: "agent", TTL: time.Minute}
	for i := range 7 {
		spec := runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("run-", i))}
		if i%2 == 0 {
			spec.Lease = lease
		}
		if i == 0 {
			for n := range 7 {
				spec.Writes.Append("event", nil)
				spec.Writes.Put(runstore.RecordKey(fmt.Sprint("key/", n)), []byte("value"))
			}
		}
		if _, err := store.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []runstore.RunID{"held/b", "held/a", "unlisted/0"} {
		spec := runstore.RunSpec{ID: id, Unlisted: true, Lease: lease}
		if id == "unlisted/0" {
			spec.Lease = nil
		}
		if _, err := store.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	next := regexp.MustCompile(`^there are more [\w, ]+; the next page begins with --from (\S+)\n$`)
	for args, want := range map[string][]string{
		"runs":          {"run-6", "run-5", "run-4", "run-3", "run-2", "run-1", "run-0"},
		"leases":        {"run-6", "run-4", "run-2", "run-0", "held/a", "held/b"},
		"journal run-0": {"1", "2", "3", "4", "5", "6", "7"},
		"run run-0":     {"key/0", "key/1", "key/2", "key/3", "key/4", "key/5", "key/6"},
	} {
		for _, limit := range []int{1, 3, 4, 5, 7} {
			var got []string
			from := []string{}
			for range 10 {
				out, errs, err := here(t, "", append(append([]string{"inspect"}, strings.Fields(args)...), append(from, "--store", url, "--limit", fmt.Sprint(limit))...)...)
				if err != nil {
					t.Fatalf("%s: %v", args, err)
				}
				rows := 0
				for _, line := range strings.Split(out[strings.LastIndex(out, "\n\n")+1:], "\n") {
					if first, _, _ := strings.Cut(line, " "); first != "" && first != strings.ToUpper(first) || len(first) == 1 {
						got = append(got, first)
						rows++
					}
				}
				if rows > limit {
					t.Errorf("%s --limit %d: a page of %d", args, limit, rows)
				}
				m := next.FindStringSubmatch(errs)
				if m == nil {
					if errs != "" {
						t.Errorf("%s: said %q", args, errs)
					}
					break
				}
				from = []string{"--from", m[1]}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %d: got %q, want %q", args, limit, got, want)
			}
		}
	}
	for args, says := range map[string]string{
		"journal run-0 --from 0":    "the least is 1",
		"journal run-0 --from last": "the least is 1",
		"runs --from nowhere":       "cursor",
	} {
		if out, _, err := here(t, "", append([]string{"inspect", "--store", url}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %q, %v, want an error that says %q", args, out, err, says)
		}
	}
}
