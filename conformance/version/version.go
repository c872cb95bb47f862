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

func describe(info *debug.BuildInfo, linked string) string {
	v := read(info, linked)
	if v.Modified {
		v.Commit += "-modified"
	}
	if v.Commit != "" {
		return v.Version + ", commit " + v.Commit
	}
	return v.Version
}

// versionOf returns the version of this module in a program.
func versionOf(info *debug.BuildInfo) string {
	version := ""
	if info != nil && info.Main.Path == module {
		version = info.Main.Version
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
	return cmp.Or(version, "(devel)")
}
