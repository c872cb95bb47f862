package spanner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

const (
	// emulatorMain is the emulator's program in the Cloud SDK, in the directory sdkComponent.
	emulatorMain = "emulator_main"
	sdkComponent = "cloud_spanner_emulator"
)

// directories are the directories of the program: of the packages of Debian and Red Hat, Snap,
// Homebrew on both kinds of Mac, and the unpacked archive.
var directories = []string{
	"/usr/lib/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/usr/lib64/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/snap/google-cloud-cli/current/bin/cloud_spanner_emulator",
	"/opt/homebrew/share/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/usr/local/share/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/opt/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/google-cloud-sdk/bin/cloud_spanner_emulator",
}

func thisMachine() *host.Machine { return host.This(directories) }

// installAdvice is the advice where the program is missing.
const installAdvice = "gcloud components install cloud-spanner-emulator, or apt-get install google-cloud-cli-spanner-emulator from Google's archive"

// unknownVersion stands for the version of an emulator that does not report one.
const unknownVersion = "emulator of unknown version"

// source is how to get an emulator: one of the fields is set.
type source struct {
	address   string
	program   string
	container host.ContainerStart
}

// chooseTier chooses the tier and returns how to get the emulator.
func chooseTier(ctx context.Context, m *host.Machine, wanted string) (tier string, how source, err error) {
	variable := "the option Tier"
	if wanted == "" {
		if wanted, variable, err = m.ForcedTier(engineName, emulators.TierLocal, emulators.TierContainer, emulators.TierService); err != nil {
			return "", how, err
		}
	}
	switch wanted {
	case "", emulators.TierLocal, emulators.TierContainer, emulators.TierService:
	default:
		return "", how, fmt.Errorf("%s=%q is not a tier of %s; it can be %s, %s or %s", variable, wanted, engineName, emulators.TierLocal, emulators.TierContainer, emulators.TierService)
	}
	if how.address = m.Getenv(serviceVariable); how.address != "" && (wanted == "" || wanted == emulators.TierService) {
		return emulators.TierService, how, nil
	}
	if wanted == emulators.TierService {
		return "", how, fmt.Errorf("%s=%s, but %s, the address of an emulator, is not set", variable, wanted, serviceVariable)
	}
	var missing error
	if wanted != emulators.TierContainer {
		if how.program, missing = findProgram(ctx, m); missing == nil {
			return emulators.TierLocal, how, nil
		}
	}
	if wanted == emulators.TierLocal {
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, wanted, missing, installAdvice)
	}
	if missing != nil && !errors.Is(missing, emulators.ErrMissing) {
		return "", how, missing
	}
	if how.container = m.Containers(engineName); how.container != nil {
		return emulators.TierContainer, how, nil
	}
	if wanted == emulators.TierContainer {
		return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
			variable, wanted, host.UseContainers(engineName))
	}
	return "", how, fmt.Errorf("%w. To install it: %s; or set %s to the address of an emulator", missing, installAdvice, serviceVariable)
}

// findProgram returns the path of the emulator's program.
func findProgram(ctx context.Context, m *host.Machine) (string, error) {
	variable := host.VariableOf(engineName, "BIN")
	if program := m.Getenv(variable); program != "" {
		if !host.IsExecutable(program) {
			return "", fmt.Errorf("%s=%s, but that is no program", variable, program)
		}
		return filepath.Abs(program)
	}
	for _, program := range []string{emulatorMain, filepath.Join(sdkComponent, emulatorMain)} {
		if found := m.LookPath(program); found != "" {
			return found, nil
		}
	}
	in := func(dir string) string { return filepath.Join(dir, host.ExecutableName(emulatorMain)) }
	dirs := m.Versioned()
	root, looked := m.CloudSDK(ctx)
	if root != "" {
		dirs = append([]string{filepath.Join(root, "bin", sdkComponent)}, dirs...)
	}
	for _, dir := range dirs {
		if host.IsExecutable(in(dir)) {
			return in(dir), nil
		}
	}
	return "", fmt.Errorf("%w: no %s. Looked at %s (not set), PATH (%s), gcloud (%s), %s",
		emulators.ErrMissing, emulatorMain, variable, m.Getenv("PATH"), looked, strings.Join(m.Directories, ", "))
}

// versionOf returns the version from the Cloud SDK that the program belongs to: the program
// itself does not report one.
func versionOf(program string) string {
	if file, err := filepath.EvalSymlinks(program); err == nil {
		program = file
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(program)))
	files, _ := filepath.Glob(filepath.Join(root, ".install", "cloud-spanner-emulator*.snapshot.json")) // the pattern is valid unless root has special characters
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var snapshot struct {
			Components []struct {
				ID      string `json:"id"`
				Version struct {
					Text string `json:"version_string"`
				} `json:"version"`
			} `json:"components"`
		}
		if json.Unmarshal(text, &snapshot) != nil {
			continue
		}
		for _, c := range snapshot.Components {
			if strings.HasPrefix(c.ID, "cloud-spanner-emulator") && c.Version.Text != "" {
				return "emulator " + c.Version.Text
			}
		}
	}
	return unknownVersion
}
