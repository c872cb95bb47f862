package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/internal/loopback"
)

// dirPrefix begins the names of the temporary directories of servers.
const dirPrefix = "tapestore-postgres-"

// localServer is a private server. mu guards the fields below it.
type localServer struct {
	bin      string // directory of the programs
	dir      *host.WorkDir
	data     string // the server's own directory, inside dir
	account  *host.Account
	port     int
	settings map[string]string

	mu     sync.Mutex
	proc   *host.Process
	frozen *host.DeathWatch
	closed bool
}

// startLocal starts a private server from this machine's programs.
func startLocal(ctx context.Context, bin string, opts *Options) (_ *Server, err error) {
	l := &localServer{bin: bin}
	memory := ""
	if opts.Dir == "" && !opts.Durable {
		memory = host.MemoryRoot()
	}
	if l.settings, err = localSettings(opts, memory != ""); err != nil {
		return nil, err
	}
	if opts.Dir == "" {
		sweep()
		l.dir, err = host.NewWorkDir(cmp.Or(memory, host.TemporaryRoot()), dirPrefix)
	} else {
		l.dir, err = host.OpenWorkDir(opts.Dir)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if err := l.prepare(ctx, opts); err != nil {
		return nil, err
	}
	version, err := l.startOnFreePort(ctx)
	if err != nil {
		return nil, err
	}
	return &Server{
		engine: emulators.Engine{Name: engineName, Version: version, Tier: emulators.TierLocal},
		url:    l.url(),
		local:  l,
	}, nil
}

// sweep removes the directories of servers whose owners have died, and kills those servers.
func sweep() {
	for _, root := range []string{host.TemporaryRoot(), host.MemoryRoot()} {
		if root != "" {
			host.SweepWorkDirs(root, dirPrefix, func(dir string) error {
				return endProcessesIn(filepath.Join(dir, "data"))
			})
		}
	}
}

// localSettings returns the settings of a private server. inMemory reports whether its data is in
// memory.
func localSettings(opts *Options, inMemory bool) (map[string]string, error) {
	durable := "off"
	if opts.Durable {
		durable = "on"
	}
	settings := map[string]string{
		"max_connections":    "500", // many tests at a time, each with pools
		"shared_buffers":     "64MB",
		"logging_collector":  "off", // the log is what the server prints
		"synchronous_commit": "on",
	}
	if inMemory {
		settings["max_wal_size"] = "256MB" // the default, 1 GB, is too much for memory
	}
	for _, name := range durableSettings {
		settings[name] = durable
	}
	for name, value := range opts.Settings {
		name = strings.ToLower(name)
		switch name {
		case "port", "listen_addresses", "data_directory", "unix_socket_directories", "logging_collector":
			return nil, fmt.Errorf("the setting %s cannot be chosen: this package sets it", name)
		}
		settings[name] = value
	}
	return settings, nil
}

// url returns the address of the maintenance database.
func (l *localServer) url() *url.URL {
	return &url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(l.port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
}

// command returns a command that runs one of the server's programs in dir, with its output in log.
func (l *localServer) command(program, dir string, log *os.File, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(l.bin, host.ExecutableName(program)), args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	// Independent of this process's environment.
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SystemRoot", "TEMP", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	l.account.Apply(cmd)
	return cmd
}

// startOnFreePort starts the server on a free port.
func (l *localServer) startOnFreePort(ctx context.Context) (version string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range 20 {
		if l.port, err = freePort(ctx); err != nil {
			return "", err
		}
		version, err = l.start(ctx)
		if !errors.Is(err, errPortTaken) { // else retry: taken between freePort and the server's start
			break
		}
	}
	return version, err
}

// freePort returns a port on which no process listens.
func freePort(ctx context.Context) (int, error) {
	l, err := loopback.Listen(ctx)
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// arguments returns the server's command line.
func (l *localServer) arguments() []string {
	args := []string{"-D", l.data, "-p", strconv.Itoa(l.port), "-c", "listen_addresses=127.0.0.1"}
	sockets := l.sockets()
	if len(sockets)+len("/.s.PGSQL.32000") > 103 { // the system's limit for socket paths
		sockets = ""
	}
	args = append(args, "-c", "unix_socket_directories="+sockets)
	for _, name := range slices.Sorted(maps.Keys(l.settings)) {
		args = append(args, "-c", name+"="+l.settings[name])
	}
	return args
}
