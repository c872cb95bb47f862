package emulators

import (
	"context"
	"errors"
	"os/exec"
	"strings"
)

const installDocker = "Docker or Podman, running; nothing here needs it as long as the engines are installed"

// doctorDocker reports whether containers can be started here. It asks the docker command, which
// knows where its server is: contexts, DOCKER_HOST, rootless servers.
func doctorDocker(ctx context.Context, m *machine) []Finding {
	f := Finding{Engine: "docker", Tier: TierContainer, Install: installDocker}
	program := m.lookPath("docker")
	if program == "" {
		f.Problem = "no docker on PATH"
		return []Finding{f}
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "version", "--format", "{{.Server.Version}}").Output()
	if err != nil {
		f.Problem = program + ": " + outputOf(err)
		return []Finding{f}
	}
	return []Finding{{Engine: f.Engine, Tier: f.Tier, Found: true, Version: strings.TrimSpace(string(out)), Where: program}}
}

// outputOf returns the error output of a program that failed, or else the error, in one line.
func outputOf(err error) string {
	if e, ok := errors.AsType[*exec.ExitError](err); ok && len(e.Stderr) > 0 {
		return strings.Join(strings.Fields(string(e.Stderr)), " ")
	}
	return err.Error()
}
