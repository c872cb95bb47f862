package version

import (
	"runtime/debug"
	"testing"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	own := debug.Module{Path: module, Version: "v1.2.3"}
	other := debug.Module{Path: "example.com/acme", Version: "v9.9.9"}
	for _, c := range []struct {
		info   *debug.BuildInfo
		linked string
		want   string
	}{
		{nil, "", "(devel)"},
		{nil, "123", "(devel), commit 123"},
		{&debug.BuildInfo{Main: own}, "", "v1.2.3"},
		{&debug.BuildInfo{Main: own, Settings: vcs}, "", "v1.2.3, commit abc-modified"},
		{&debug.BuildInfo{Main: own, Settings: vcs}, "123", "v1.2.3, commit 123"},
		{&debug.BuildInfo{Main: other, Settings: vcs, Deps: []*debug.Module{&own}}, "", "v1.2.3"}, // the commit belongs to the other module
		{&debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: module, Version: "v0.0.0", Replace: &debug.Module{Path: "../.."}}}}, "", "v0.0.0 replaced by ../.."},
	} {
		if got := describe(c.info, c.linked); got != c.want {
			t.Errorf("of %+v and %q: got %q, want %q", c.info, c.linked, got, c.want)
		}
	}
}
