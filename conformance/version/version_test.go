package version

import (
	"runtime"
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

func TestRead(t *testing.T) {
	t.Parallel()
	settings := []debug.BuildSetting{
		{Key: "CGO_ENABLED", Value: "0"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	}
	own := read(&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}, Settings: settings}, "")
	want := Info{
		Version: "v1.2.3", Commit: "abc", CommitTime: "2026-01-02T03:04:05Z", Modified: true, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Static: true, Module: module,
	}
	if own != want {
		t.Errorf("this module's program: got %+v, want %+v", own, want)
	}
	other := read(&debug.BuildInfo{Main: debug.Module{Path: "example.com/acme"}, Settings: settings}, "")
	want = Info{Version: "(devel)", Go: want.Go, Platform: want.Platform, Static: true, Module: "example.com/acme"}
	if other != want {
		t.Errorf("another module's program: got %+v, want %+v", other, want)
	}
	if linked := read(nil, "123"); linked.Commit != "123" || linked.Static {
		t.Errorf("a program without build information: got %+v", linked)
	}
}
