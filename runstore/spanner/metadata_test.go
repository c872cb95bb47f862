package spanner_test

import (
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
)

// A handle that is opened by its URL sends no metadata of this module. The operation's name
// goes out only on handles that ask for it, as tests do.
func TestNoMetadataByDefault(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	var mu sync.Mutex
	seen, ours := 0, map[string]bool{}
	all := p.server.Refuse(1, codes.Internal, func(c spanneremulator.Call) bool {
		if c.Database == p.String() {
			mu.Lock()
			defer mu.Unlock()
			seen++
			for key := range c.Metadata {
				if strings.HasPrefix(key, "tapestore") {
					ours[c.Method+": "+key] = true
				}
			}
		}
		return false
	})
	defer all.Stop()
	s, err := runstore.Open(t.Context(), "spanner://"+p.Project+"/"+p.Instance+"/"+p.Database+"?emulator="+p.server.Address())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"})
	if err == nil {
		_, err = s.Commit(t.Context(), signal("run", "event"))
	}
	if err == nil {
		_, err = s.ReadJournal(t.Context(), "run", 1, 10)
	}
	if err == nil {
		_, err = s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen == 0 || len(ours) > 0 {
		t.Errorf("%d RPCs arrived, with the metadata %v, want some RPCs and no metadata of this module's", seen, ours)
	}
}
