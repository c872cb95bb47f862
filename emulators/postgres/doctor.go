package postgres

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// Doctor reports which tiers of PostgreSQL are available, in the order in which they are tried. It
// starts no server.
func Doctor(ctx context.Context) []emulators.Finding { return doctor(ctx, thisMachine()) }

func doctor(ctx context.Context, m *host.Machine) []emulators.Finding {
	return []emulators.Finding{
		serviceFinding(ctx, m),
		localFinding(ctx, m),
		m.ContainerFinding(engineName),
	}
}

func serviceFinding(ctx context.Context, m *host.Machine) emulators.Finding {
	variable := host.VariableOf(engineName, "URL")
	f := emulators.Finding{Engine: engineName, Tier: emulators.TierService, Install: "set " + variable + " to postgres://user@host:port/database"}
	address := m.Getenv(variable)
	if address == "" {
		f.Problem = variable + " is not set"
		return f
	}
	u, err := parseURL(address)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	shown := *u
	shown.RawQuery = "" // which may hold a password too
	f.Where = shown.Redacted()
	ctx, cancel := context.WithTimeout(ctx, host.DoctorBound)
	defer cancel()
	s := &Server{url: u}
	if err := s.admin(ctx, func(c *pgx.Conn) error {
		f.Version, err = serverVersion(ctx, c)
		return err
	}); err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Found, f.Install = true, ""
	return f
}

func localFinding(ctx context.Context, m *host.Machine) emulators.Finding {
	f := emulators.Finding{Engine: engineName, Tier: emulators.TierLocal, Install: installAdvice}
	bin, err := findPrograms(ctx, m)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Where = bin
	ctx, cancel := context.WithTimeout(ctx, host.DoctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, host.ExecutableName("postgres")), "--version").Output()
	if err != nil {
		f.Problem = bin + ": " + host.OutputOf(err)
		return f
	}
	// "postgres (PostgreSQL) 15.18 (Debian …)"
	_, version, _ := strings.Cut(string(out), ") ")
	f.Version, _, _ = strings.Cut(strings.TrimSpace(version), " ")
	f.Found, f.Install = true, ""
	return f
}
