package host

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
)

// Cbtemulator is the program of Bigtable's emulator in the Cloud SDK, by which CloudSDK recognizes
// the SDK.
const Cbtemulator = "cbtemulator"

// CloudSDK returns the root directory of the Cloud SDK; looked describes the search. The gcloud on
// the search path is usually a link into the SDK. Otherwise gcloud is asked, which takes a second.
func (m *Machine) CloudSDK(ctx context.Context) (root, looked string) {
	program := m.LookPath("gcloud")
	if program == "" {
		return "", "not on PATH"
	}
	if file, err := filepath.EvalSymlinks(program); err == nil {
		if root := filepath.Dir(filepath.Dir(file)); HasPrograms(filepath.Join(root, "platform", "bigtable-emulator"), Cbtemulator) {
			return root, "is in " + root
		}
	}
	ctx, cancel := context.WithTimeout(ctx, DoctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "info", "--format=value(installation.sdk_root)").Output()
	if err != nil {
		return "", program + ": " + OutputOf(err)
	}
	root = strings.TrimSpace(string(out))
	return root, "says " + root
}
