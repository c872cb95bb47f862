package emulators

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// postgresDirectories are the directories of the programs in the packages of Debian, Red Hat,
// Alpine, Homebrew on both kinds of Mac and on Linux, Postgres.app, and FreeBSD.
var postgresDirectories = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

// installPostgres is the advice where the programs are missing.
const installPostgres = `apt-get install postgresql, dnf install postgresql-server or brew install postgresql`

type containerStart = func(ctx context.Context) (ContainerServer, error)

// postgresSource is how to get a server: one of the fields is set.
type postgresSource struct {
	url       string
	bin       string
	container containerStart
}

// postgresTier chooses the tier and returns how to get the server.
func (m *machine) postgresTier(ctx context.Context) (tier string, how postgresSource, err error) {
	forced, variable, err := m.forcedTier(enginePostgres, TierLocal, TierContainer, TierService)
	if err != nil {
		return "", how, err
	}
	urlVariable := variableOf(enginePostgres, "URL")
	if how.url = m.getenv(urlVariable); how.url != "" && (forced == "" || forced == TierService) {
		return TierService, how, nil
	}
	if forced == TierService {
		return "", how, fmt.Errorf("%s=%s, but %s, the address of a server, is not set", variable, forced, urlVariable)
	}
	var missing error
	if forced != TierContainer {
		how.bin, missing = m.findPostgres(ctx)
		if missing == nil {
			return TierLocal, how, nil
		}
		if !errors.Is(missing, ErrMissing) {
			return "", how, missing
		}
	}
	if forced == TierLocal {
		// Not ErrMissing: a test must not skip an engine that was requested by name.
		return "", how, fmt.Errorf("%s=%s, but %v. To install it: %s", variable, forced, missing, installPostgres)
	}
	if how.container = containerStarter(enginePostgres); how.container != nil {
		return TierContainer, how, nil
	}
	if forced == TierContainer {
		return "", how, fmt.Errorf("%s=%s, but this program cannot start containers: nothing has called RegisterContainer. To have them, %s",
			variable, forced, useContainers(enginePostgres))
	}
	return "", how, fmt.Errorf("%w. To install it: %s; or set %s to the address of a server", missing, installPostgres, urlVariable)
}

// findPostgres returns the directory that holds initdb and postgres.
func (m *machine) findPostgres(ctx context.Context) (string, error) {
	has := func(dir string) bool { return hasPrograms(dir, "initdb", "postgres") }
	variable := variableOf(enginePostgres, "BIN")
	if dir := m.getenv(variable); dir != "" {
		if !has(dir) {
			return "", fmt.Errorf("%s=%s, but initdb and postgres are not both there", variable, dir)
		}
		return filepath.Abs(dir)
	}
	config, looked := m.pgConfigBin(ctx)
	if config != "" && has(config) {
		return config, nil
	}
	for _, dir := range m.path() {
		if has(dir) {
			return dir, nil
		}
	}
	for _, dir := range m.versioned(enginePostgres) {
		if has(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: no directory with initdb and postgres. Looked at %s (not set), pg_config (%s), PATH (%s), %s",
		ErrMissing, variable, looked, m.getenv("PATH"), strings.Join(m.globs[enginePostgres], ", "))
}

// pgConfigBin asks pg_config for the directory of the programs; looked describes the result.
// pg_config belongs to the client library and may be installed without a server.
func (m *machine) pgConfigBin(ctx context.Context) (dir, looked string) {
	program := m.lookPath("pg_config")
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
