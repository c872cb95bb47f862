package doctor

import (
	"context"
	"os/exec"
	"strings"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

const installDocker = "Docker or Podman, running; nothing here needs it as long as the engines are installed"

// docker reports whether containers can be started here. It asks the docker command, which knows
// where its server is: contexts, DOCKER_HOST, rootless servers.
func docker(ctx context.Context, m *host.Machine) emulators.Finding {
	f := emulators.Finding{Engine: "docker", Tier: emulators.TierContainer, Install: installDocker}
	program := m.LookPath("docker")
	if program == "" {
		f.Problem = "no docker on PATH"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, host.DoctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "version", "--format", "{{.Server.Version}}").Output()
	if err != nil {
		f.Problem = program + ": " + host.OutputOf(err)
		return f
	}
	return emulators.Finding{Engine: f.Engine, Tier: f.Tier, Found: true, Version: strings.TrimSpace(string(out)), Where: program}
}
