package emulators

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// doctorPostgres looks for a running server and for the programs of one.
func doctorPostgres(ctx context.Context, m *machine) []Finding {
	return []Finding{
		m.postgresServiceFinding(ctx),
		m.postgresLocalFinding(ctx),
		containerFinding(enginePostgres),
	}
}

func (m *machine) postgresServiceFinding(ctx context.Context) Finding {
	variable := variableOf(enginePostgres, "URL")
	f := Finding{Engine: enginePostgres, Tier: TierService, Install: "set " + variable + " to postgres://user@host:port/database"}
	address := m.getenv(variable)
	if address == "" {
		f.Problem = variable + " is not set"
		return f
	}
	u, err := parsePostgresURL(address)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	shown := *u
	shown.RawQuery = "" // which may hold a password too
	f.Where = shown.Redacted()
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	s := &PostgresServer{url: u}
	if err := s.admin(ctx, func(c *pgx.Conn) error {
		f.Version, err = postgresVersion(ctx, c)
		return err
	}); err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Found, f.Install = true, ""
	return f
}

func (m *machine) postgresLocalFinding(ctx context.Context) Finding {
	f := Finding{Engine: enginePostgres, Tier: TierLocal, Install: installPostgres}
	bin, err := m.findPostgres(ctx)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Where = bin
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, executableName("postgres")), "--version").Output()
	if err != nil {
		f.Problem = bin + ": " + outputOf(err)
		return f
	}
	// "postgres (PostgreSQL) 15.18 (Debian …)"
	_, version, _ := strings.Cut(string(out), ") ")
	f.Version, _, _ = strings.Cut(strings.TrimSpace(version), " ")
	f.Found, f.Install = true, ""
	return f
}
