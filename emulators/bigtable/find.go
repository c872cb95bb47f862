package bigtable

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// cbtemulator is the emulator's program in the Cloud SDK.
const cbtemulator = host.Cbtemulator

// directories are the directories of the program: of the packages of Debian and Red Hat, Snap,
// Homebrew on both kinds of Mac, and the unpacked archive.
var directories = []string{
	"/usr/lib/google-cloud-sdk/platform/bigtable-emulator",
	"/usr/lib64/google-cloud-sdk/platform/bigtable-emulator",
	"/snap/google-cloud-cli/current/platform/bigtable-emulator",
	"/opt/homebrew/share/google-cloud-sdk/platform/bigtable-emulator",
	"/usr/local/share/google-cloud-sdk/platform/bigtable-emulator",
	"/opt/google-cloud-sdk/platform/bigtable-emulator",
	"/google-cloud-sdk/platform/bigtable-emulator",
}

func thisMachine() *host.Machine { return host.This(directories) }

// installAdvice is the advice where the program is missing.
const installAdvice = "gcloud components install bigtable, or apt-get install google-cloud-cli-bigtable-emulator from Google's archive"

// source is how to get an emulator: one of the fields is set, or none for the in-process emulator.
type source struct {
	address   string
	program   string
	container host.ContainerStart
}

// chooseTier chooses the tier and returns how to get the emulator.
func chooseTier(ctx context.Context, m *host.Machine, wanted string) (tier string, how source, err error) {
	tiers := []string{emulators.TierEmulator, emulators.TierLocal, emulators.TierContainer, emulators.TierService}
	variable := "the option Tier"
	if wanted == "" {
		if wanted, variable, err = m.ForcedTier(engineName, tiers...); err != nil {
			return "", how, err
		}
	}
	how.address = m.Getenv(serviceVariable)
	switch wanted {
	case "":
		if how.address != "" {
			return emulators.TierService, how, nil
		}
		return emulators.TierEmulator, how, nil
	case emulators.TierEmulator:
		return emulators.TierEmulator, how, nil
	case emulators.TierService:
		if how.address == "" {
			return "", how, fmt.Errorf("%s=%s, but %s, the address of an emulator, is not set", variable, wanted, serviceVariable)
		}
	case emulators.TierLocal:
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		if how.program, err = findProgram(ctx, m); err != nil {
			return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, wanted, err, installAdvice)
		}
	case emulators.TierContainer:
		if how.container = m.Containers(engineName); how.container == nil {
			return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
				variable, wanted, host.UseContainers(engineName))
		}
	default:
		return "", how, fmt.Errorf("%s=%q is not a tier of %s; it can be one of %s", variable, wanted, engineName, strings.Join(tiers, ", "))
	}
	return wanted, how, nil
}

// findProgram returns the path of the emulator's program.
func findProgram(ctx context.Context, m *host.Machine) (string, error) {
	variable := host.VariableOf(engineName, "BIN")
	if dir := m.Getenv(variable); dir != "" {
		if !host.HasPrograms(dir, cbtemulator) {
			return "", fmt.Errorf("%s=%s, but %s is not there", variable, dir, cbtemulator)
		}
		dir, err := filepath.Abs(dir)
		return filepath.Join(dir, host.ExecutableName(cbtemulator)), err
	}
	if program := m.LookPath(cbtemulator); program != "" {
		return program, nil
	}
	root, looked := m.CloudSDK(ctx)
	for _, dir := range append([]string{filepath.Join(root, "platform", "bigtable-emulator")}, m.Versioned()...) {
		if filepath.IsAbs(dir) && host.HasPrograms(dir, cbtemulator) {
			return filepath.Join(dir, host.ExecutableName(cbtemulator)), nil
		}
	}
	return "", fmt.Errorf("%w: no %s. Looked at %s (not set), PATH (%s), gcloud (%s), %s",
		emulators.ErrMissing, cbtemulator, variable, m.Getenv("PATH"), looked, strings.Join(m.Directories, ", "))
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
