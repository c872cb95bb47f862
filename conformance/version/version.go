// Package version reports the version and the commit from which a program was built.
package version

import (
	"cmp"
	"runtime/debug"
	"strings"
)

const module = "github.com/tapestore/tapestore"

// commit is set by the linker where Go does not record the commit itself:
//
//	-ldflags "-X github.com/tapestore/tapestore/conformance/version.commit=…"
var commit string

// String returns the version of this module in the running program, such as "v0.3.0" or "(devel)",
// and the commit where it is known: "(devel), commit 1f2e3d4c5b6a". The program may belong to
// another module.
func String() string {
	info, _ := debug.ReadBuildInfo()
	return describe(info, commit)
}

func describe(info *debug.BuildInfo, commit string) string {
	version := ""
	if info != nil && info.Main.Path == module {
		version = info.Main.Version
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if commit == "" && settings["vcs.revision"] != "" {
			commit = settings["vcs.revision"]
			if settings["vcs.modified"] == "true" {
				commit += "-modified"
			}
		}
	} else if info != nil {
		for _, d := range info.Deps {
			if d.Path != module {
				continue
			}
			if version = d.Version; d.Replace != nil {
				version = strings.TrimSpace(version + " replaced by " + d.Replace.Path + " " + d.Replace.Version)
			}
		}
	}
	if version = cmp.Or(version, "(devel)"); commit != "" {
		version += ", commit " + commit
	}
	return version
}
