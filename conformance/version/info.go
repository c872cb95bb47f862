package version

import (
	"runtime"
	"runtime/debug"
)

// Info describes the running program.
type Info struct {
	// Version is the version of this module in the program, such as "v0.3.0" or "(devel)".
	Version string `json:"version"`
	// Commit is the commit from which the program was built; empty if it is not known.
	Commit string `json:"commit,omitempty"`
	// CommitTime is when that commit was made, as RFC 3339; empty if it is not known.
	CommitTime string `json:"commit_time,omitempty"`
	// Modified reports whether the checkout had changes that were not committed.
	Modified bool `json:"modified,omitempty"`
	// Go is the version of Go, and Platform is the system and the processor: "linux/amd64".
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Static reports whether the program was built without cgo, and so depends on no library.
	Static bool `json:"static"`
	// Module is the path of the program's main module, which may be another than this module.
	Module string `json:"module,omitempty"`
}

// Read returns the Info of the running program.
func Read() Info {
	info, _ := debug.ReadBuildInfo()
	return read(info, commit)
}

func read(info *debug.BuildInfo, linked string) Info {
	v := Info{Version: versionOf(info), Commit: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return v
	}
	v.Module = info.Main.Path
	for _, s := range info.Settings {
		switch own := info.Main.Path == module; {
		case s.Key == "CGO_ENABLED":
			v.Static = s.Value == "0"
		case !own: // the commit belongs to the other module
		case s.Key == "vcs.revision" && linked == "":
			v.Commit = s.Value
		case s.Key == "vcs.time":
			v.CommitTime = s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && linked == "":
			v.Modified = true
		}
	}
	return v
}
