package emulators

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// cbtemulator is the emulator's program in the Cloud SDK.
const cbtemulator = "cbtemulator"

// bigtableDirectories are the directories of the program: of the packages of Debian and Red Hat,
// Snap, Homebrew on both kinds of Mac, and the unpacked archive.
var bigtableDirectories = []string{
	"/usr/lib/google-cloud-sdk/platform/bigtable-emulator",
	"/usr/lib64/google-cloud-sdk/platform/bigtable-emulator",
	"/snap/google-cloud-cli/current/platform/bigtable-emulator",
	"/opt/homebrew/share/google-cloud-sdk/platform/bigtable-emulator",
	"/usr/local/share/google-cloud-sdk/platform/bigtable-emulator",
	"/opt/google-cloud-sdk/platform/bigtable-emulator",
	"/google-cloud-sdk/platform/bigtable-emulator",
}

// installBigtable is the advice where the program is missing.
const installBigtable = "gcloud components install bigtable, or apt-get install google-cloud-cli-bigtable-emulator from Google's archive"

// bigtableSource is how to get an emulator: one of the fields is set, or none for the in-process
// emulator.
type bigtableSource struct {
	address   string
	program   string
	container containerStart
}

// bigtableTier chooses the tier and returns how to get the emulator.
func (m *machine) bigtableTier(ctx context.Context, wanted string) (tier string, how bigtableSource, err error) {
	tiers := []string{TierEmulator, TierLocal, TierContainer, TierService}
	variable := "the option Tier"
	if wanted == "" {
		if wanted, variable, err = m.forcedTier(engineBigtable, tiers...); err != nil {
			return "", how, err
		}
	}
	how.address = m.getenv(bigtableServiceVariable)
	switch wanted {
	case "":
		if how.address != "" {
			return TierService, how, nil
		}
		return TierEmulator, how, nil
	case TierEmulator:
		return TierEmulator, how, nil
	case TierService:
		if how.address == "" {
			return "", how, fmt.Errorf("%s=%s, but %s, the address of an emulator, is not set", variable, wanted, bigtableServiceVariable)
		}
	case TierLocal:
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		if how.program, err = m.findBigtable(ctx); err != nil {
			return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, wanted, err, installBigtable)
		}
	case TierContainer:
		if how.container = containerStarter(engineBigtable); how.container == nil {
			return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
				variable, wanted, useContainers(engineBigtable))
		}
	default:
		return "", how, fmt.Errorf("%s=%q is not a tier of %s; it can be one of %s", variable, wanted, engineBigtable, strings.Join(tiers, ", "))
	}
	return wanted, how, nil
}

// findBigtable returns the path of the emulator's program.
func (m *machine) findBigtable(ctx context.Context) (string, error) {
	variable := variableOf(engineBigtable, "BIN")
	if dir := m.getenv(variable); dir != "" {
		if !hasPrograms(dir, cbtemulator) {
			return "", fmt.Errorf("%s=%s, but %s is not there", variable, dir, cbtemulator)
		}
		dir, err := filepath.Abs(dir)
		return filepath.Join(dir, executableName(cbtemulator)), err
	}
	if program := m.lookPath(cbtemulator); program != "" {
		return program, nil
	}
	root, looked := m.cloudSDK(ctx)
	for _, dir := range append([]string{filepath.Join(root, "platform", "bigtable-emulator")}, m.versioned(engineBigtable)...) {
		if filepath.IsAbs(dir) && hasPrograms(dir, cbtemulator) {
			return filepath.Join(dir, executableName(cbtemulator)), nil
		}
	}
	return "", fmt.Errorf("%w: no %s. Looked at %s (not set), PATH (%s), gcloud (%s), %s",
		ErrMissing, cbtemulator, variable, m.getenv("PATH"), looked, strings.Join(m.globs[engineBigtable], ", "))
}

// cloudSDK returns the root directory of the Cloud SDK; looked describes the search. The gcloud on
// the search path is usually a link into the SDK. Otherwise gcloud is asked, which takes a second.
func (m *machine) cloudSDK(ctx context.Context) (root, looked string) {
	program := m.lookPath("gcloud")
	if program == "" {
		return "", "not on PATH"
	}
	if file, err := filepath.EvalSymlinks(program); err == nil {
		if root := filepath.Dir(filepath.Dir(file)); hasPrograms(filepath.Join(root, "platform", "bigtable-emulator"), cbtemulator) {
			return root, "is in " + root
		}
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "info", "--format=value(installation.sdk_root)").Output()
	if err != nil {
		return "", program + ": " + outputOf(err)
	}
	root = strings.TrimSpace(string(out))
	return root, "says " + root
}

// revisionDate matches the linker flag by which Google's build records the date of the source.
var revisionDate = regexp.MustCompile(`main\.revisionDate=(\d{4}-\d{2}-\d{2})`)

// cbtemulatorVersion returns the version from the program's build information: the program does not
// report one.
func cbtemulatorVersion(program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	bttest := false
	for _, module := range append(info.Deps, &info.Main) {
		if module.Path == "cloud.google.com/go/bigtable" {
			if bttest = true; strings.HasPrefix(module.Version, "v") {
				return cbtemulator + " " + module.Version[1:], nil
			}
		}
	}
	if !bttest {
		return "", errors.New("it is not built from cloud.google.com/go/bigtable")
	}
	for _, setting := range info.Settings {
		if date := revisionDate.FindStringSubmatch(setting.Value); date != nil {
			return cbtemulator + " of " + date[1], nil
		}
	}
	return cbtemulator + " built with " + info.GoVersion, nil
}
