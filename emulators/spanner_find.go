package emulators

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// spannerProgram is the emulator's program, as the Cloud SDK has it, in the directory
// spannerComponent of its programs.
const (
	// spannerProgram is the emulator's program in the Cloud SDK, in the directory spannerComponent.
	spannerProgram   = "emulator_main"
	spannerComponent = "cloud_spanner_emulator"
)

// spannerDirectories are the directories of the program: of the packages of Debian and Red Hat,
// Snap, Homebrew on both kinds of Mac, and the unpacked archive.
var spannerDirectories = []string{
	"/usr/lib/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/usr/lib64/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/snap/google-cloud-cli/current/bin/cloud_spanner_emulator",
	"/opt/homebrew/share/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/usr/local/share/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/opt/google-cloud-sdk/bin/cloud_spanner_emulator",
	"/google-cloud-sdk/bin/cloud_spanner_emulator",
}

// installSpanner is the advice where the program is missing.
const installSpanner = "gcloud components install cloud-spanner-emulator, or apt-get install google-cloud-cli-spanner-emulator from Google's archive"

// spannerUnknownVersion stands for the version of an emulator that does not report one.
const spannerUnknownVersion = "emulator of unknown version"

// spannerSource is how to get an emulator: one of the fields is set.
type spannerSource struct {
	address   string
	program   string
	container containerStart
}

// spannerTier chooses the tier and returns how to get the emulator.
func (m *machine) spannerTier(ctx context.Context, wanted string) (tier string, how spannerSource, err error) {
	variable := "the option Tier"
	if wanted == "" {
		if wanted, variable, err = m.forcedTier(engineSpanner, TierLocal, TierContainer, TierService); err != nil {
			return "", how, err
		}
	}
	switch wanted {
	case "", TierLocal, TierContainer, TierService:
	default:
		return "", how, fmt.Errorf("%s=%q is not a tier of %s; it can be %s, %s or %s", variable, wanted, engineSpanner, TierLocal, TierContainer, TierService)
	}
	if how.address = m.getenv(spannerServiceVariable); how.address != "" && (wanted == "" || wanted == TierService) {
		return TierService, how, nil
	}
	if wanted == TierService {
		return "", how, fmt.Errorf("%s=%s, but %s, the address of an emulator, is not set", variable, wanted, spannerServiceVariable)
	}
	var missing error
	if wanted != TierContainer {
		if how.program, missing = m.findSpanner(ctx); missing == nil {
			return TierLocal, how, nil
		}
	}
	if wanted == TierLocal {
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, wanted, missing, installSpanner)
	}
	if missing != nil && !errors.Is(missing, ErrMissing) {
		return "", how, missing
	}
	if how.container = containerStarter(engineSpanner); how.container != nil {
		return TierContainer, how, nil
	}
	if wanted == TierContainer {
		return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
			variable, wanted, useContainers(engineSpanner))
	}
	return "", how, fmt.Errorf("%w. To install it: %s; or set %s to the address of an emulator", missing, installSpanner, spannerServiceVariable)
}

// findSpanner returns the path of the emulator's program.
func (m *machine) findSpanner(ctx context.Context) (string, error) {
	variable := variableOf(engineSpanner, "BIN")
	if program := m.getenv(variable); program != "" {
		if !isExecutable(program) {
			return "", fmt.Errorf("%s=%s, but that is no program", variable, program)
		}
		return filepath.Abs(program)
	}
	for _, program := range []string{spannerProgram, filepath.Join(spannerComponent, spannerProgram)} {
		if found := m.lookPath(program); found != "" {
			return found, nil
		}
	}
	in := func(dir string) string { return filepath.Join(dir, executableName(spannerProgram)) }
	dirs := m.versioned(engineSpanner)
	root, looked := m.cloudSDK(ctx)
	if root != "" {
		dirs = append([]string{filepath.Join(root, "bin", spannerComponent)}, dirs...)
	}
	for _, dir := range dirs {
		if isExecutable(in(dir)) {
			return in(dir), nil
		}
	}
	return "", fmt.Errorf("%w: no %s. Looked at %s (not set), PATH (%s), gcloud (%s), %s",
		ErrMissing, spannerProgram, variable, m.getenv("PATH"), looked, strings.Join(m.globs[engineSpanner], ", "))
}

// spannerVersion returns the version from the Cloud SDK that the program belongs to: the program
// itself does not report one.
func spannerVersion(program string) string {
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
	return spannerUnknownVersion
}
