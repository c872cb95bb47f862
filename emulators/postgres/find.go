package postgres

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// directories are the directories of the programs in the packages of Debian, Red Hat,
// Alpine, Homebrew on both kinds of Mac and on Linux, Postgres.app, and FreeBSD.
var directories = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

func thisMachine() *host.Machine { return host.This(directories) }

// installAdvice is the advice where the programs are missing.
const installAdvice = `apt-get install postgresql, dnf install postgresql-server or brew install postgresql`

// source is how to get a server: one of the fields is set.
type source struct {
	url       string
	bin       string
	container host.ContainerStart
}

// chooseTier chooses the tier and returns how to get the server.
func chooseTier(ctx context.Context, m *host.Machine) (tier string, how source, err error) {
	forced, variable, err := m.ForcedTier(engineName, emulators.TierLocal, emulators.TierContainer, emulators.TierService)
	if err != nil {
		return "", how, err
	}
	urlVariable := host.VariableOf(engineName, "URL")
	if how.url = m.Getenv(urlVariable); how.url != "" && (forced == "" || forced == emulators.TierService) {
		return emulators.TierService, how, nil
	}
	if forced == emulators.TierService {
		return "", how, fmt.Errorf("%s=%s, but %s, the address of a server, is not set", variable, forced, urlVariable)
	}
	var missing error
	if forced != emulators.TierContainer {
		how.bin, missing = findPrograms(ctx, m)
		if missing == nil {
			return emulators.TierLocal, how, nil
		}
		if !errors.Is(missing, emulators.ErrMissing) {
			return "", how, missing
		}
	}
	if forced == emulators.TierLocal {
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, forced, missing, installAdvice)
	}
	if how.container = m.Containers(engineName); how.container != nil {
		return emulators.TierContainer, how, nil
	}
	if forced == emulators.TierContainer {
		return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
			variable, forced, host.UseContainers(engineName))
	}
	return "", how, fmt.Errorf("%w. To install it: %s; or set %s to the address of a server", missing, installAdvice, urlVariable)
}

// findPrograms returns the directory that holds initdb and postgres.
func findPrograms(ctx context.Context, m *host.Machine) (string, error) {
	has := func(dir string) bool { return host.HasPrograms(dir, "initdb", "postgres") }
	variable := host.VariableOf(engineName, "BIN")
	if dir := m.Getenv(variable); dir != "" {
		if !has(dir) {
			return "", fmt.Errorf("%s=%s, but initdb and postgres are not both there", variable, dir)
		}
		return filepath.Abs(dir)
	}
	config, looked := pgConfigBin(ctx, m)
	if config != "" && has(config) {
		return config, nil
	}
	for _, dir := range m.Path() {
		if has(dir) {
			return dir, nil
		}
	}
	for _, dir := range m.Versioned() {
		if has(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: no directory with initdb and postgres. Looked at %s (not set), pg_config (%s), PATH (%s), %s",
		emulators.ErrMissing, variable, looked, m.Getenv("PATH"), strings.Join(m.Directories, ", "))
}

// pgConfigBin asks pg_config for the directory of the programs; looked describes the result.
// pg_config belongs to the client library and may be installed without a server.
func pgConfigBin(ctx context.Context, m *host.Machine) (dir, looked string) {
	program := m.LookPath("pg_config")
	if program == "" {
		return "", "not on PATH"
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--bindir").Output()
	if err != nil {
		return "", fmt.Sprintf("%s: %v", program, err)
	}
	dir = strings.TrimSpace(string(out))
	return dir, "says " + dir
}
