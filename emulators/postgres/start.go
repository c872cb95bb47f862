package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

var errPortTaken = errors.New("the port is taken")

// start runs the server and waits until a query succeeds. The caller holds mu.
func (l *localServer) start(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, host.StartBound, fmt.Errorf("no answer from the server within %v", host.StartBound))
	defer cancel()
	log, err := os.OpenFile(l.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close() // the server has its own descriptor
	said, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	proc, err := host.StartProcess(l.command("postgres", l.data, log, l.arguments()...), host.WhenOrphanedQuit)
	if err != nil {
		return "", err
	}
	l.proc = proc
	ticker := time.NewTicker(host.PollInterval)
	defer ticker.Stop()
	for {
		if version, err = l.probe(ctx); err == nil {
			return version, nil
		}
		select {
		case <-proc.Done:
			text := tail(l.log(), said)
			err := fmt.Errorf("the server ended while it started: %v\n%s", proc.Err, text)
			if strings.Contains(text, "could not bind IPv4 address") {
				err = fmt.Errorf("%w: %w", errPortTaken, err)
			}
			return "", errors.Join(err, l.kill())
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("%w (last: %w)\n%s", context.Cause(ctx), err, tail(l.log(), said)), l.kill())
		case <-ticker.C:
		}
	}
}

// log returns the path of the file that the server prints to.
func (l *localServer) log() string { return filepath.Join(l.dir.Path, "postgres.log") }

// probe returns the server's version if a query succeeds and it is this server that answers: if the
// port was taken, another server might.
func (l *localServer) probe(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, l.url().String())
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closeConn(ctx, c)) }()
	var data string
	if err := c.QueryRow(ctx, "SELECT current_setting('data_directory')").Scan(&data); err != nil {
		return "", err
	}
	if data != l.data {
		return "", fmt.Errorf("the server on port %d works in %s, not in %s", l.port, data, l.data)
	}
	return serverVersion(ctx, c)
}

// serverVersion returns the server's version, or an error if it is too old.
func serverVersion(ctx context.Context, c *pgx.Conn) (string, error) {
	var number int
	var text string
	err := c.QueryRow(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')").Scan(&number, &text)
	if err != nil {
		return "", err
	}
	text, _, _ = strings.Cut(text, " ") // without the distribution's suffix
	if number/10_000 < minVersion {
		return "", fmt.Errorf("postgres %s is too old: version %d or newer is needed", text, minVersion)
	}
	return text, nil
}

// closeConn closes a connection, even if ctx has ended.
func closeConn(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return c.Close(ctx)
}

// tail returns the end of a log from an offset on, at most its last 4 KiB.
func tail(name string, from int64) string {
	const most = 4096
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	text = text[min(from, int64(len(text))):]
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}
